//! The search for a file in a folder, by a worker or by a thread. A thread also writes the page of
//! a listing, because sorting many names takes long.

use std::sync::Arc;

use millrace_config::FolderRoute;
use millrace_files::{
    AcceptedCodings, Errno, OpenMode, RequestPath, Resolution, resolve, write_listing,
};

/// A search for the file, script or listing of a request.
#[derive(Debug)]
pub(crate) struct FileSearch {
    pub(crate) folder: Arc<FolderRoute>,
    pub(crate) path: RequestPath,
    pub(crate) accepted: AcceptedCodings,
    /// How a listing is shown. `None` if it is not shown.
    pub(crate) listing: Option<ListingRequest>,
}

/// The parts of a request that decide how a listing is shown.
#[derive(Debug)]
pub(crate) struct ListingRequest {
    /// The path, as the client sent it.
    pub(crate) path: Vec<u8>,
    pub(crate) query: Vec<u8>,
    /// Whether the page has a link to the parent.
    pub(crate) has_parent: bool,
}

/// The result of a search.
#[derive(Debug)]
pub(crate) enum Found {
    /// Everything but a listing that is shown.
    Resolution(Resolution),
    /// The page of a listing.
    Page(Vec<u8>),
}

impl FileSearch {
    /// Searches the folder, and writes the page if the result is a listing that is shown.
    ///
    /// # Errors
    /// Those of [`resolve()`].
    pub(crate) fn run(&self, mode: OpenMode) -> Result<Found, Errno> {
        let Self { folder, path, accepted, listing } = self;
        let opened = &folder.folder.as_ref().expect("the program opens folders before it serves").0;
        match (resolve(&**opened, &folder.rules, path, *accepted, mode)?, listing) {
            (Resolution::Listing(mut entries), Some(request)) => {
                let mut page = Vec::new();
                let ListingRequest { path, query, has_parent } = request;
                write_listing(&mut page, path, &mut entries, query, *has_parent);
                Ok(Found::Page(page))
            }
            (resolution, _) => Ok(Found::Resolution(resolution)),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_config::FolderHandle;

    use super::super::test_folder::TestFolder;
    use super::*;

    /// Searches a folder with two files for its listing, in a thread.
    fn listed(listing: Option<ListingRequest>) -> Found {
        let mut test = TestFolder::new(&[("b/x", b""), ("b/y", b"")]);
        let route = Arc::get_mut(&mut test.route).expect("the test has the only reference");
        route.rules.has_listing = true;
        route.folder = Some(FolderHandle(Arc::new(test.folder.clone())));
        let path = RequestPath::decode(b"/b/").unwrap();
        let folder = test.route.clone();
        let search = FileSearch { folder, path, accepted: AcceptedCodings::NONE, listing };
        assert_eq!(search.run(OpenMode::Cached).map(drop), Err(Errno::AGAIN), "a listing waits");
        let thread = std::thread::spawn(move || search.run(OpenMode::Waiting));
        thread.join().unwrap().unwrap()
    }

    #[test]
    fn a_thread_writes_the_page_of_a_listing() {
        for (query, has_parent, first) in [("", true, "x"), ("?order=desc", false, "y")] {
            let (path, query) = (b"/shown/".to_vec(), query.as_bytes().to_vec());
            let request = ListingRequest { path, query, has_parent };
            let Found::Page(page) = listed(Some(request)) else { panic!("a page") };
            let page = String::from_utf8(page).unwrap();
            assert!(page.contains("<h1>Index of /shown/</h1>"), "{page}");
            assert_eq!(page.contains("href=\"../\""), has_parent);
            let at = |name: &str| page.find(&format!("<a href=\"{name}\">")).unwrap();
            let last = if first == "x" { "y" } else { "x" };
            assert!(at(first) < at(last), "{page}");
        }
        assert!(matches!(listed(None), Found::Resolution(Resolution::Listing(_))));
    }
}
