//! The rules by which the files of a folder are served.

use super::compression::Compression;
use super::content_type::ContentTypes;
use super::name_pattern::NamePattern;
use super::try_file::TryFile;

/// The rules by which the files of a folder are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FolderRules {
    /// The names of files that stand for their folder, the first one first. Each is one segment.
    pub index: Vec<Vec<u8>>,
    /// Whether a folder without such a file is listed.
    pub has_listing: bool,
    /// Names that count as missing, wherever they are in a path.
    pub hide: Vec<NamePattern>,
    /// The places at which a request is looked for, in order; only the path itself if empty.
    pub try_files: Vec<TryFile>,
    /// The path of the file for requests that have none, such as the page of a single-page
    /// application: segments separated by `/`.
    pub fallback: Option<Vec<u8>>,
    /// Whether encoded forms may lie beside a file, such as `a.css.br`.
    pub has_precompressed: bool,
    /// Which files are compressed; `None` if none are.
    pub compression: Option<Compression>,
    /// The media types.
    pub types: ContentTypes,
    /// Patterns of extensions with their dot, in any case. Files with these are programs and are
    /// never sent.
    pub program_extensions: Vec<NamePattern>,
    /// Patterns of extensions with their dot, in any case. Files with these are scripts, to which
    /// an interpreter responds; none if there is no interpreter.
    pub script_extensions: Vec<NamePattern>,
    /// Patterns of extensions in the same form. Files with these are scripts elsewhere in the
    /// configuration, and are never sent.
    pub other_script_extensions: Vec<NamePattern>,
    /// The value of `Cache-Control`, a valid one.
    pub cache_control: Option<Vec<u8>>,
}

impl Default for FolderRules {
    fn default() -> Self {
        Self {
            index: vec![b"index.html".to_vec()],
            has_listing: false,
            hide: Vec::new(),
            try_files: Vec::new(),
            fallback: None,
            has_precompressed: true,
            compression: Some(Compression::default()),
            types: ContentTypes::default(),
            program_extensions: PROGRAM_EXTENSIONS
                .iter()
                .map(|pattern| NamePattern::new(pattern.as_bytes()))
                .collect(),
            script_extensions: Vec::new(),
            other_script_extensions: Vec::new(),
            cache_control: None,
        }
    }
}

/// The extensions of programs, and of files that programs include.
const PROGRAM_EXTENSIONS: [&str; 12] = [
    ".php*", ".phtml", ".phar", ".cgi", ".fcgi", ".pl", ".py", ".rb", ".lua", ".jsp", ".asp*",
    ".inc",
];

/// Endings of copies that editors, operators and compressors make. A copy of a program has the
/// source of the program.
const COPY_ENDINGS: [&[u8]; 13] = [
    b"~", b".bak", b".old", b".orig", b".save", b".swp", b".swo", b".tmp", b".rej", b".dist",
    b".br", b".zst", b".gz",
];

/// The one hidden name that is served: RFC 8615.
const WELL_KNOWN: &[u8] = b".well-known";

impl FolderRules {
    /// Returns whether a name counts as missing: it begins with a dot, or a pattern hides it.
    pub fn hides(&self, name: &[u8]) -> bool {
        (name.starts_with(b".") && name != WELL_KNOWN) || self.has_hidden_pattern(name)
    }

    /// Returns whether a name to which a link led counts as missing.
    ///
    /// A volume of Kubernetes has each version of its files in a folder such as
    /// `..2026_11_21_10_16_00.1234`, and beside it links to them. Such a folder does not count: no
    /// request can name it, and without it none of the links could be served.
    pub(super) fn hides_target(&self, name: &[u8]) -> bool {
        let is_version = matches!(name, [b'.', b'.', b'0'..=b'9', ..]);
        if is_version { self.has_hidden_pattern(name) } else { self.hides(name) }
    }

    fn has_hidden_pattern(&self, name: &[u8]) -> bool {
        self.hide.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns whether the files have forms in content codings.
    pub fn has_codings(&self) -> bool {
        self.has_precompressed || self.compression.is_some()
    }

    /// Returns whether a file of this type and length is compressed. `no-transform` excludes it
    /// (RFC 9111 section 5.2.2.6).
    pub(super) fn compresses(&self, content_type: &str, bytes: u64) -> bool {
        let is_fixed = self.cache_control.as_ref().is_some_and(|value| {
            let mut directives = value.split(|&byte| byte == b',');
            directives.any(|it| it.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
        });
        let rules = self.compression.as_ref().filter(|_| !is_fixed);
        rules.is_some_and(|rules| rules.applies_to(content_type, bytes))
    }

    /// Returns whether a name is that of a script that is run.
    pub fn is_script(&self, name: &[u8]) -> bool {
        let extension = name.iter().rposition(|&byte| byte == b'.').map(|at| &name[at..]);
        extension.is_some_and(|extension| {
            self.script_extensions.iter().any(|it| it.matches_in_any_case(extension))
        })
    }

    /// Returns whether a name is that of a program or a script, or of a copy of one. Dots and
    /// spaces at its end are ignored, as by some file systems.
    pub fn is_program(&self, name: &[u8]) -> bool {
        let mut name = trim_end(name);
        loop {
            if let Some(at) = name.iter().rposition(|&byte| byte == b'.')
                && self.is_program_extension(&name[at..])
            {
                return true;
            }
            let is_ending = |ending: &&&[u8]| {
                let start = name.len().checked_sub(ending.len());
                start.is_some_and(|start| name[start..].eq_ignore_ascii_case(ending))
            };
            let Some(ending) = COPY_ENDINGS.iter().find(is_ending) else { return false };
            name = trim_end(&name[..name.len() - ending.len()]);
        }
    }

    fn is_program_extension(&self, extension: &[u8]) -> bool {
        let of_scripts = self.script_extensions.iter().chain(&self.other_script_extensions);
        let mut patterns = self.program_extensions.iter().chain(of_scripts);
        patterns.any(|pattern| pattern.matches_in_any_case(extension))
    }
}

fn trim_end(name: &[u8]) -> &[u8] {
    let end = name.iter().rposition(|byte| !b". ".contains(byte)).map_or(0, |at| at + 1);
    &name[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_dot_are_hidden_except_well_known() {
        let rules =
            FolderRules { hide: vec![NamePattern::new(b"*.key")], ..FolderRules::default() };
        for name in [".git", ".htaccess", "..", ".well-known2", "a.key", ".key"] {
            assert!(rules.hides(name.as_bytes()), "{name}");
        }
        for name in [".well-known", "a", "a.b", "key"] {
            assert!(!rules.hides(name.as_bytes()), "{name}");
        }
        let version = b"..2026_11_21_10_16_00.1234";
        assert!(rules.hides(version) && !rules.hides_target(version));
        for name in ["..data", ".1", "..2.key", "a.key"] {
            assert!(rules.hides_target(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn programs_and_their_copies_are_recognised() {
        let rules = FolderRules::default();
        for name in [
            "a.php",
            "a.PHP",
            "a.php5",
            "a.phps",
            "a.phtml",
            "a.phar",
            "a.cgi",
            "a.fcgi",
            "a.pl",
            "a.py",
            "a.rb",
            "a.lua",
            "a.jsp",
            "a.asp",
            "a.aspx",
            "a.inc",
            ".php",
            "a.php~",
            "a.php.bak",
            "a.php.BAK",
            "a.py.orig~",
            "a.inc.swp",
            "a.php.gz",
            "a.pl.br",
            "a.php.",
            "a.php . ",
            "a.py.",
            "#a.php#",
            "a.b.php",
        ] {
            assert!(rules.is_program(name.as_bytes()), "{name}");
        }
        for name in [
            "a.html",
            "php",
            "a.php.html",
            "a.pdf",
            "a.gz",
            "~",
            ".bak",
            "",
            "...",
            "a.p",
            "a.plx",
            "a.include",
            "a.rbx",
            "python.txt",
        ] {
            assert!(!rules.is_program(name.as_bytes()), "{name}");
        }
        let none = FolderRules { program_extensions: Vec::new(), ..rules };
        assert!(!none.is_program(b"a.php"));
    }

    #[test]
    fn scripts_and_their_copies_are_programs() {
        let pattern = |text: &str| vec![NamePattern::new(text.as_bytes())];
        let rules = FolderRules {
            script_extensions: pattern(".tpl"),
            other_script_extensions: pattern(".x?"),
            ..FolderRules::default()
        };
        for name in ["a.tpl", "a.TPL.bak", "a.tpl~", "a.tpl.gz", "a.tpl.", "a.xy", "a.xy.orig"] {
            assert!(rules.is_program(name.as_bytes()), "{name}");
        }
        assert!(!rules.is_program(b"a.tplx") && !rules.is_program(b"a.x"));
        assert!(rules.is_script(b"a.tpl") && !rules.is_script(b"a.tpl~"));
        assert!(!rules.is_script(b"a.xy"), "another route runs it");
    }
}
