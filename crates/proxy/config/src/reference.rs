//! The reference pages, written from the tables: two man pages and their like in Markdown. The
//! committed copies are compared with these by a test; `millrace reference PAGE` prints one.

use std::fmt::Write;

use super::build::allowed_limit;
use super::cache_command;
use super::file::{BOOST, FILE_BYTES_MAX, FORWARD, ROUTE, TABLES_MAX};
use super::options::{COMMANDS, OptionRow, Scope, ValueType};
use super::schema;
use crate::limits::{LimitRow, Limits};

/// A page: its name, the file of the project that holds it, and what writes it.
type ReferencePage = (&'static str, &'static str, fn() -> String);

/// The pages.
pub const PAGES: &[ReferencePage] = &[
    ("man", "man/millrace.1", program_page),
    ("toml", "man/millrace.toml.5", file_page),
    ("markdown", "docs/reference.md", markdown),
    ("schema", "docs/millrace.schema.json", schema::schema),
];

/// The text of a page, if there is one of that name.
pub fn page(name: &str) -> Option<String> {
    let (.., text) = PAGES.iter().find(|(known, ..)| *known == name)?;
    Some(text())
}

/// The tables of a file, with what each is.
const TABLES: &[(&str, &[Scope], &str)] = &[
    ("Top of the file", &[Scope::Process], "Of the whole process."),
    (
        "[[forward]]",
        FORWARD,
        "One forward proxy. Only its listeners share its rules, so several tables make several \
         proxies with rules of their own.",
    ),
    (
        "[[boost]]",
        BOOST,
        "One booster, with at least one route. What it says of the cache counts for those of its \
         routes that do not say it themselves.",
    ),
    (
        "[[boost.route]]",
        ROUTE,
        "A route of the booster above it. The first one that matches takes a request; a request \
         that none takes is answered 404.",
    ),
];

const MARK: &str = "This page is written by `millrace reference markdown` (or `man`, `toml`) from \
                    the tables of options and limits; change it there.";

fn program_page() -> String {
    let mut out = head("MILLRACE", 1);
    out.push_str(".SH NAME\nmillrace \\- an HTTP proxy: forward proxy and booster\n.SH SYNOPSIS\n");
    for (name, _) in COMMANDS {
        let file = if matches!(*name, "run" | "check") { " \\fIFILE.toml\\fR" } else { "" };
        let options = match *name {
            "demo" => "",
            "cache" => " \\fIACTION\\fR [\\fIOPTION\\fR]...",
            _ => " [\\fIOPTION\\fR]...",
        };
        let _ = writeln!(out, ".B millrace {name}\\fR{file}{options}\n.br");
    }
    out.push_str(".SH COMMANDS\n");
    for (name, about) in COMMANDS {
        let _ = writeln!(out, ".TP\n.B {name}\n{}.", roff(about));
    }
    out.push_str(".SH OPTIONS\n");
    for row in OptionRow::TABLE {
        let Some(flag) = row.flag else { continue };
        let [flag, placeholder, text] = [flag, row.kind.placeholder(), row.text].map(roff);
        let _ = writeln!(out, ".TP\n.BI \\-\\-{flag} \" {placeholder}\"\n{text}");
        roff_facts(&mut out, row, &format!("Commands: {}.", row.commands()));
    }
    cache_command::roff_section(&mut out, roff);
    out.push_str(PROGRAM_TAIL);
    out
}

const PROGRAM_TAIL: &str = "\
.SH SIGNALS
.TP
.B SIGTERM, SIGINT
Take no more connections, finish the requests under way, then end with status 0; what is left
after the limit drain_ms is cut off. A second SIGINT ends at once.
.TP
.B SIGHUP
Read the file of
.B millrace run
again and go on under what it says, without touching a connection; reopen the access log too. A
file that is problem, or asks for what only another process can have, is refused in one line on
standard error, and nothing changes.
.TP
.B SIGUSR1
Reopen the access log.
.SH EXIT STATUS
0 after a drain; 1 when the machine refuses what is needed (a port in use, say), or the result cannot
be written; 2 for an option or file that is problem; 3 after
.B millrace cache purge
if nothing stored matched (with disks, whose objects are not counted, it is 0); 130 after a second
SIGINT. One line on standard error explains each but 0.
.SH SEE ALSO
.BR millrace.toml (5)
";

fn file_page() -> String {
    let mut out = head("MILLRACE.TOML", 5);
    out.push_str(
        ".SH NAME\nmillrace.toml \\- configuration of millrace\n.SH DESCRIPTION\n\
         A TOML file for\n.BR \"millrace run\" \" and\" \" millrace check\" .\n\
         Unknown keys are errors. Options of the process on the command line come before the\n\
         file's own.\n",
    );
    let _ = writeln!(out, "{}", roff(&bounds()));
    for (name, scopes, text) in TABLES {
        let _ = writeln!(out, ".SH \"{}\"\n{}", roff(name), roff(text));
        for row in OptionRow::of_scopes(scopes) {
            let _ = writeln!(out, ".TP\n.B {}\n{}", roff(row.key), roff(row.text));
            roff_facts(&mut out, row, "");
        }
    }
    out.push_str(".SH \"[limits]\"\nLimits and timeouts, with what happens at each.\n");
    for row in Limits::TABLE {
        let [name, text, expected] = [row.name, row.text.trim(), &allowed_limit(row)].map(roff);
        let LimitRow { default, unit, .. } = row;
        let _ = writeln!(
            out,
            ".TP\n.B {name}\n{text}\nAllowed: {expected}. Default: {default} {unit}."
        );
    }
    out.push_str(".SH SEE ALSO\n.BR millrace (1)\n");
    out
}

/// The bounds of a file and of its lists.
fn bounds() -> String {
    let values_max = |key| OptionRow::of_key(key).map_or(0, |row| row.values_max);
    format!(
        "A file has at most {} MiB, {TABLES_MAX} tables of each kind of service, {TABLES_MAX} \
         routes in a booster, {} origins in a route and {} names in a list of domains.",
        FILE_BYTES_MAX >> 20,
        values_max("origins"),
        values_max("allow-domain"),
    )
}

fn head(title: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".\\\" {MARK}\n.TH {title} {section} \"\" \"millrace {version}\"\n")
}

/// What follows the text of an option in a man page.
fn roff_facts(out: &mut String, row: &OptionRow, more: &str) {
    let several = if row.is_repeatable() { " May be given several times." } else { "" };
    let facts =
        format!("Allowed: {}. Default: {}.{several} {more}", row.kind.expected(), row.default);
    let _ = writeln!(out, "{}", roff(facts.trim_end()));
}

/// Text that roff takes literally. No line of ours begins with a dot or a quote.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn markdown() -> String {
    let mut out = format!("# Reference\n\n{MARK}\n\n## Commands\n\n");
    for (name, about) in COMMANDS {
        let _ = writeln!(out, "- `millrace {name}`: {about}.");
    }
    out.push_str(
        "\n## Options\n\n| option | key in files | commands | expected | default | what for |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in OptionRow::TABLE {
        let flag = row.flag.map_or_else(String::new, |flag| format!("`--{flag}`"));
        let several = if row.is_repeatable() { " May be given several times." } else { "" };
        let has_key = row.kind != ValueType::Limit && row.scope != Scope::Start;
        let key = if has_key { format!("`{}`, ", row.key) } else { String::new() };
        let cells = [
            flag,
            format!("{key}{}", row.tables()),
            row.commands(),
            row.kind.expected(),
            row.default.to_owned(),
            format!("{}{several}", row.text),
        ];
        let _ = writeln!(out, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    cache_command::markdown_section(&mut out);
    let _ = writeln!(out, "\n## Tables of a file\n\n{}\n", bounds());
    for (name, scopes, text) in TABLES {
        let keys: Vec<_> =
            OptionRow::of_scopes(scopes).map(|row| format!("`{}`", row.key)).collect();
        let _ = writeln!(out, "- **{name}**: {text} Keys: {}.", keys.join(", "));
    }
    out.push_str(
        "- **[limits]**: the table below.\n\n## Limits\n\n\
         | limit | default | expected | what is limited, and what happens at it |\n\
         | --- | --- | --- | --- |\n",
    );
    for row in Limits::TABLE {
        let LimitRow { name, default, unit, .. } = row;
        let (expected, text) = (allowed_limit(row), row.text.trim());
        let _ = writeln!(out, "| `{name}` | {default} {unit} | {expected} | {text} |");
    }
    out
}
