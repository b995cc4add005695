//! Stage file: finds the file of a route with a folder, and brings its bytes into the cache if it
//! is short. If the folder has no such file, a route with origins advances to the lookup.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{FolderRoute, OriginProtocol, Route};
use millrace_engine::{Engine, Key, TokenKind};
use millrace_files::{AcceptedCodings, Errno, JobKind, OpenMode, RequestPath, Resolution};
use millrace_http_cache::{is_not_modified, is_precondition_met};
use millrace_http1::{FieldName, Method, destination, path};
use millrace_store::Object;

use crate::cached::{ResponseSource, now_ms, waiting};
use crate::coded::choice;
use crate::core::Core;
use crate::exchange::reason::Reason;
use crate::exchange::sendfile;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::exchange::{Exchange, OwnResponse, RequestPlan};
use crate::files::{
    FileContext, FileLoad, FileSearch, FileSource, FileWork, Finding, Found, ListingRequest,
    Loaded, NamedFile, ServedFile, SharedFile, SharedFiles, listing,
};

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match event {
        Event::Enter => begin(core, key),
        Event::Woken => resume(core, key),
        Event::TimedOut => {
            waiting::end_wait(core, key);
            give_up_waiting(core, key)
        }
        Event::End(reason) => NextStep::End(reason),
        _ => NextStep::Wait,
    }
}

fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let exchange = core.exchange(key);
    if let Some(NamedFile { folder, path }) = named(exchange).cloned() {
        return find(core, key, &folder, &path);
    }
    let snapshot = exchange.snapshot().clone();
    let route = snapshot.route_of(exchange.service, exchange.plan).expect("the stage has a route");
    let folder = route.folder.as_ref().expect("the stage is for routes with a folder");
    let request = &exchange.request;
    match request.method() {
        // The origin may serve its user something else.
        Method::Get | Method::Head
            if passes_on(route) && request.find(FieldName::Authorization).is_some() =>
        {
            return NextStep::Advance(Stage::Lookup);
        }
        Method::Get | Method::Head => {}
        _ if passes_on(route) => return NextStep::Advance(Stage::Lookup),
        // A script may respond to any method.
        _ if route.protocol == OriginProtocol::FastCgi => {}
        _ => return refuse_method(exchange),
    }
    let Some(path) = path_below(exchange, route) else {
        return NextStep::End(Reason::FileNameInvalid);
    };
    find(core, key, folder, &path)
}

/// Finds the file of a path below a folder.
fn find<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    folder: &Arc<FolderRoute>,
    path: &[u8],
) -> NextStep {
    let exchange = core.exchange(key);
    let permits_coding =
        |response| choice::permits_coded_file(response, folder.rules.compression.as_ref());
    let may_be_coded = folder.rules.has_codings()
        && (named(exchange).is_none() || permits_coding(&exchange.response));
    let accepted = match may_be_coded {
        true => AcceptedCodings::parse(exchange.request.values(FieldName::AcceptEncoding)),
        false => AcceptedCodings::NONE,
    };
    let (now, check) = (core.engine.now(), Duration::from_millis(folder.check_ms));
    let name = core.files.name(&mut core.engine, folder, path, accepted);
    // The file of an earlier search may be gone.
    let context = core.exchange(key).file_mut();
    let named = context.named.take();
    *context = FileContext { name, searched: now, named, ..FileContext::default() };
    if let Some(finding) = core.files.find(name, now, check) {
        return act(core, key, finding);
    }
    let Ok(path) = RequestPath::decode(path) else {
        return NextStep::End(Reason::FileNameInvalid);
    };
    let mut search = FileSearch { folder: folder.clone(), path, accepted, listing: None };
    match search.run(OpenMode::Cached) {
        Err(Errno::AGAIN) => {
            search.listing = listing_request(core.exchange(key), folder);
            let work = move || search.run(OpenMode::Waiting);
            let waiter = core.waiter(key, TokenKind::Exchange);
            match core.shared.files.run(JobKind::Io, waiter, work) {
                Ok(pending) => waiting::wait_for_file(core, key, FileWork::Resolve(pending)),
                Err(_) => NextStep::End(Reason::Overloaded),
            }
        }
        found => keep(core, key, found),
    }
}

/// Returns whether requests that the folder does not serve are passed on to an origin of HTTP.
fn passes_on(route: &Route) -> bool {
    !route.origins.is_empty() && route.protocol == OriginProtocol::Http
}

/// Returns the folder in which the file of an exchange is looked for.
fn folder_of<'a>(exchange: &'a Exchange, route: &'a Route) -> &'a Arc<FolderRoute> {
    match named(exchange) {
        Some(named) => &named.folder,
        None => route.folder.as_ref().expect("the stage is for routes with a folder"),
    }
}

/// Returns the file that the response of an origin names, if it does.
fn named(exchange: &Exchange) -> Option<&NamedFile> {
    exchange.file.as_ref()?.named.as_ref()
}

/// Responds to a method other than GET and HEAD for a file.
fn refuse_method(exchange: &mut Exchange) -> NextStep {
    match exchange.request.method() {
        Method::Options => respond(exchange, OwnResponse::FileOptions),
        _ => NextStep::End(Reason::MethodNotAllowed),
    }
}

/// Returns the path of the request below the folder: the normal form of the path after that of the
/// route, with a slash at its beginning. `None` if it has none, as `*`.
fn path_below(exchange: &Exchange, route: &Route) -> Option<Vec<u8>> {
    let destination = destination(&exchange.request).ok()?;
    let (path, _) = path::split_query(destination.path_and_query);
    let path = path::normalise(path);
    // The path of the route ends with a slash.
    let below = path.strip_prefix(&route.path.as_bytes()[..route.path.len() - 1])?;
    below.starts_with(b"/").then(|| below.to_vec())
}

/// Returns how a listing of the folder is shown; `None` if it is not the response.
fn listing_request(exchange: &Exchange, folder: &FolderRoute) -> Option<ListingRequest> {
    if !folder.rules.has_listing || named(exchange).is_some() || !is_read(exchange) {
        return None;
    }
    let snapshot = exchange.snapshot();
    let route = snapshot.route_of(exchange.service, exchange.plan).filter(|it| !passes_on(it))?;
    let has_parent = path_below(exchange, route).is_some_and(|path| path != b"/");
    let destination = destination(&exchange.request).ok()?;
    let (path, query) = path::split_query(destination.path_and_query);
    Some(ListingRequest { path: path.to_vec(), query: query.to_vec(), has_parent })
}

fn respond(exchange: &mut Exchange, own: OwnResponse) -> NextStep {
    exchange.plan = RequestPlan::Respond(own);
    NextStep::Advance(Stage::Deliver)
}

/// Continues an exchange that a thread has woken.
fn resume<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    match core.exchange(key).file_mut().work.take() {
        Some(FileWork::Resolve(work)) => match work.take() {
            Some(found) => {
                waiting::end_wait(core, key);
                keep(core, key, found)
            }
            None => keep_waiting(core, key, FileWork::Resolve(work)),
        },
        Some(FileWork::Load(work, guard)) => match work.take() {
            Some(loaded) => {
                waiting::end_wait(core, key);
                finish_load(core, key, loaded)
            }
            None => keep_waiting(core, key, FileWork::Load(work, guard)),
        },
        Some(FileWork::Share(work, guard)) => match work.take() {
            Some(found) => {
                waiting::end_wait(core, key);
                drop(guard);
                finish_sharing(core, key, found)
            }
            None => keep_waiting(core, key, FileWork::Share(work, guard)),
        },
        Some(FileWork::Read(_) | FileWork::RefusedRead(_) | FileWork::Store(..)) | None => {
            unreachable!("the stage waits for other work")
        }
    }
}

fn keep_waiting<E: Engine>(core: &mut Core<E>, key: Key, work: FileWork) -> NextStep {
    core.exchange(key).file_mut().work = Some(work);
    NextStep::Wait
}

/// Ends the wait for a thread that takes too long. A file that is not compressed yet is sent as it
/// is: the threads may have too much to compress.
fn give_up_waiting<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let now_ms = now_ms(&core.engine);
    let exchange = core.exchange(key);
    let context = exchange.file_mut();
    match (context.work.take(), context.served.clone()) {
        (Some(FileWork::Load(..)), Some(file)) if file.compressed.is_some() => {
            serve(exchange, plain_form(file), None)
        }
        (Some(FileWork::Share(..)), Some(file)) => {
            file.note_unshared(now_ms);
            serve(exchange, file, None)
        }
        _ => NextStep::End(Reason::FileTimedOut),
    }
}

/// Keeps what was found in the worker's table, and acts on it.
fn keep<E: Engine>(core: &mut Core<E>, key: Key, found: Result<Found, Errno>) -> NextStep {
    let now_ms = now_ms(&core.engine);
    let exchange = core.exchanges.get_mut(key).expect("the driver's exchange is in the table");
    let snapshot = exchange.snapshot().clone();
    let route = snapshot.route_of(exchange.service, exchange.plan).expect("the stage has a route");
    let folder = &folder_of(exchange, route).clone();
    let FileContext { name, searched, .. } = *exchange.file_mut();
    let found = match found {
        Ok(Found::Page(page)) => {
            return serve(exchange, Rc::new(listing(page, &folder.rules, now_ms)), None);
        }
        Ok(Found::Resolution(found)) => Ok(found),
        Err(error) => Err(error),
    };
    let finding = match found {
        Ok(Resolution::File(found)) => {
            let hash = core.shared.cache.as_ref().map(|cache| *cache.hash());
            let kept = (hash.as_ref(), snapshot.limits().file_memory_bytes);
            match core.files.served(name, found, folder, kept, now_ms) {
                Some(file) => Finding::File(file),
                None => return NextStep::End(Reason::Overloaded),
            }
        }
        // A finding that depends on the request is not kept for others.
        Ok(Resolution::Listing(_)) if passes_on(route) || named(exchange).is_some() => {
            return act(core, key, Finding::Missing);
        }
        // A listing that is shown is a page.
        Ok(Resolution::Listing(_)) => return refuse_method(exchange),
        Ok(Resolution::Redirect) => Finding::Redirect,
        Ok(Resolution::Script(script)) => Finding::Script(Rc::new(script)),
        Ok(Resolution::Program(_)) => Finding::Program,
        Ok(Resolution::Missing) => Finding::Missing,
        Ok(Resolution::Forbidden) => Finding::Forbidden,
        Err(Errno::MFILE | Errno::NFILE) => return NextStep::End(Reason::Overloaded),
        Err(_) => return NextStep::End(Reason::FileFailed),
    };
    // A thread may have found it long ago.
    core.files.insert(name, finding.clone(), folder, searched);
    act(core, key, finding)
}

/// Returns whether the method reads: it is GET or HEAD.
fn is_read(exchange: &Exchange) -> bool {
    matches!(exchange.request.method(), Method::Get | Method::Head)
}

/// Acts on a finding of the folder.
fn act<E: Engine>(core: &mut Core<E>, key: Key, finding: Finding) -> NextStep {
    let exchange = core.exchange(key);
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    match finding {
        Finding::File(file) if named(exchange).is_some() => find_bytes(core, key, file),
        _ if named(exchange).is_some() => NextStep::End(Reason::FileMissing),
        Finding::Script(script) => {
            exchange.file_mut().script = Some(script);
            NextStep::Advance(Stage::Lookup)
        }
        Finding::File(_) | Finding::Redirect if !is_read(exchange) => refuse_method(exchange),
        Finding::File(file) => find_bytes(core, key, file),
        _ if route.is_some_and(passes_on) => NextStep::Advance(Stage::Lookup),
        Finding::Redirect => respond(exchange, OwnResponse::FolderRedirect),
        Finding::Forbidden => NextStep::End(Reason::FileForbidden),
        // The response does not show that the program exists.
        Finding::Missing | Finding::Program => NextStep::End(Reason::FileMissing),
    }
}

/// Finds the bytes of a file: in memory of iolited, or in the cache.
fn find_bytes<E: Engine>(core: &mut Core<E>, key: Key, file: Rc<ServedFile>) -> NextStep {
    let file = file.instead().unwrap_or(file);
    match core.shared.iolited.get().filter(|_| file.is_shareable()) {
        Some(files) => find_shared_bytes(core, key, file, &files.clone()),
        None => find_own_bytes(core, key, file),
    }
}

/// Finds the bytes of a file in memory of iolited, or has a thread get them. If they are not there,
/// the file itself is sent.
fn find_shared_bytes<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    file: Rc<ServedFile>,
    files: &Arc<SharedFiles>,
) -> NextStep {
    let now_ms = now_ms(&core.engine);
    let exchange = core.exchanges.get_mut(key).expect("the driver's exchange is in the table");
    let Some((open, status)) = file.opened() else {
        // The cache has a compressed form.
        core.files.remove(exchange.file_mut().name);
        return begin(core, key);
    };
    if !needs_body(exchange, &file) || !file.may_be_shared(now_ms) {
        return serve(exchange, file, None);
    }
    if let Some(shared) = file.shared() {
        return serve_shared(exchange, file, shared);
    }
    match files.find(&*open, &status) {
        Ok(Some(shared)) => return serve_shared(exchange, file, shared),
        Err(Errno::AGAIN) => {}
        Ok(None) | Err(_) => return serve(exchange, file, None),
    }
    let (Some(guard), Some(turn)) = (file.begin_load(), files.take_turn()) else {
        // A thread gets these bytes, or others.
        return serve(exchange, file, None);
    };
    exchange.file_mut().served = Some(file.clone());
    let waiter = core.waiter(key, TokenKind::Exchange);
    let work = move || turn.wait_for(&*open, &status);
    match core.shared.files.run(JobKind::Io, waiter, work) {
        Ok(pending) => waiting::wait_for_file(core, key, FileWork::Share(pending, guard)),
        Err(_) => serve(core.exchange(key), file, None),
    }
}

/// Serves a file from the memory of iolited, or, if it is not there, the file itself.
fn finish_sharing<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    found: Result<Option<Arc<SharedFile>>, Errno>,
) -> NextStep {
    let now_ms = now_ms(&core.engine);
    let exchange = core.exchange(key);
    let file = exchange.file_mut().served.clone().expect("set before iolited is tried");
    match found {
        Ok(Some(shared)) => serve_shared(exchange, file, shared),
        Ok(None) | Err(_) => {
            file.note_unshared(now_ms);
            serve(exchange, file, None)
        }
    }
}

fn serve_shared(
    exchange: &mut Exchange,
    file: Rc<ServedFile>,
    shared: Arc<SharedFile>,
) -> NextStep {
    file.set_shared(&shared);
    exchange.file_mut().source = Some(FileSource::Memory(shared));
    serve(exchange, file, None)
}

/// Returns whether the response has the bytes of a file.
fn needs_body(exchange: &Exchange, file: &ServedFile) -> bool {
    exchange.request.method() == Method::Get && !is_not_modified(&exchange.request, &file.header)
}

/// Finds the bytes of a file in the cache, or reads them into it.
fn find_own_bytes<E: Engine>(core: &mut Core<E>, key: Key, file: Rc<ServedFile>) -> NextStep {
    let now_ms = now_ms(&core.engine);
    let exchange = core.exchanges.get_mut(key).expect("the driver's exchange is in the table");
    let (Some(cache_key), Some(cache)) = (file.key, &core.shared.cache) else {
        return serve(exchange, file, None);
    };
    if let Some(object) = cache.find(cache_key) {
        core.counters.cache_hits.add(1);
        file.close();
        return serve(exchange, file, Some(object));
    }
    let context = exchange.file_mut();
    let Some(source) = file.source() else {
        // The cache has dropped the bytes of a closed file.
        core.files.remove(context.name);
        return begin(core, key);
    };
    (context.served, context.source) = (Some(file.clone()), Some(source));
    // Only the compressed bytes have the length for HEAD.
    let needs_length =
        file.compressed.is_some() && !is_not_modified(&exchange.request, &file.header);
    if !needs_length && !needs_body(exchange, &file) {
        return serve(exchange, file, None);
    }
    let Some(guard) = file.begin_load() else {
        // Another exchange reads them.
        return serve(exchange, plain_form(file), None);
    };
    let snapshot = exchange.snapshot().clone();
    let route = snapshot.route_of(exchange.service, exchange.plan).expect("the stage has a route");
    let folder = folder_of(exchange, route);
    let load = FileLoad::new(&file, folder, now_ms).expect("the file is open and has a key");
    if load.is_short() {
        match load.run(cache, false) {
            Err(Errno::AGAIN) => {}
            loaded => return finish_load(core, key, loaded),
        }
    }
    let (cache, waiter) = (cache.clone(), core.waiter(key, TokenKind::Exchange));
    match core.shared.files.run(load.kind(), waiter, move || load.run(&cache, true)) {
        Ok(pending) => waiting::wait_for_file(core, key, FileWork::Load(pending, guard)),
        // A later request compresses it.
        Err(_) if file.compressed.is_some() => serve(core.exchange(key), plain_form(file), None),
        Err(_) => NextStep::End(Reason::Overloaded),
    }
}

/// Serves a file whose bytes were read into the cache, or were not admitted to it.
fn finish_load<E: Engine>(core: &mut Core<E>, key: Key, loaded: Result<Loaded, Errno>) -> NextStep {
    core.counters.cache_misses.add(1);
    let exchange = core.exchange(key);
    let file = exchange.file_mut().served.clone().expect("set before its bytes are read");
    match loaded {
        Ok(Loaded::Kept(object)) => {
            file.close();
            serve(exchange, file, Some(object))
        }
        Ok(Loaded::NotKept) => {
            file.note_not_kept();
            serve(exchange, plain_form(file), None)
        }
        Ok(Loaded::Incompressible) => {
            file.note_incompressible();
            find_bytes(core, key, file)
        }
        Err(_) => NextStep::End(Reason::FileFailed),
    }
}

/// Returns the form of a file that can be sent without the cache.
fn plain_form(file: Rc<ServedFile>) -> Rc<ServedFile> {
    match &file.compressed {
        Some((_, plain)) => plain.clone(),
        None => file,
    }
}

/// Makes a file the response. Its bytes come from `object` or from the file itself.
fn serve(exchange: &mut Exchange, file: Rc<ServedFile>, object: Option<Arc<Object>>) -> NextStep {
    if !is_precondition_met(&exchange.request, &file.header) && is_read(exchange) {
        return NextStep::End(Reason::PreconditionFailed);
    }
    let file = match named(exchange) {
        Some(_) => sendfile::with_fields(&file, &exchange.response),
        None => file,
    };
    exchange.caching.key = file.key;
    let context = exchange.file_mut();
    context.source = match object {
        Some(_) => None,
        None => context.source.take().or_else(|| file.source()),
    };
    context.served = Some(file);
    exchange.caching.object = object;
    exchange.caching.source = ResponseSource::Stored;
    NextStep::Advance(Stage::Deliver)
}
