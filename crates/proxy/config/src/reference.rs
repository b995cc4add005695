//! The reference pages, written from the tables: two manual pages, their equivalent in Markdown,
//! and the schema. A test compares the files of the project with these; `millrace reference PAGE`
//! prints one.

use std::fmt::Write;

use super::build::expected_of_limit;
use super::cache_command;
use super::examples::EXAMPLES;
use super::file::{BOOST, FILE_BYTES_MAX, FORWARD, ROUTE, TABLES_MAX};
use super::options::{ALIASES, COMMANDS, Group, OptionRow, Scope};
use super::reload::fixed_settings_sentence;
use super::schema;
use super::value_type::ValueType;
use crate::limits::{LimitRow, Limits};

/// A page: its name, its file in the project, and the function that writes it.
type ReferencePage = (&'static str, &'static str, fn() -> String);

/// The pages.
pub const PAGES: &[ReferencePage] = &[
    ("man", "man/millrace.1", program_page),
    ("toml", "man/millrace.toml.5", file_page),
    ("markdown", "docs/reference.md", markdown),
    ("schema", "docs/millrace.schema.json", schema::schema),
];

/// Returns the text of a page; `None` if there is no page of that name.
pub fn page(name: &str) -> Option<String> {
    let (.., text) = PAGES.iter().find(|(known, ..)| *known == name)?;
    Some(text())
}

/// The tables of a file, with the scopes of their options and a description.
const TABLES: &[(&str, &[Scope], &str)] = &[
    ("Top level", &[Scope::Process], "Options of the process."),
    (
        "[[forward]]",
        FORWARD,
        "A forward proxy. Several tables define several proxies, each with its own listeners and \
         rules, such as one for each group of clients.",
    ),
    (
        "[[boost]]",
        BOOST,
        "A reverse proxy, with at least one route. Its cache options apply to the routes that do \
         not set them.",
    ),
    (
        "[[boost.route]]",
        ROUTE,
        "A route of the reverse proxy above it, with origins, a folder or both. A request uses the \
         first route that matches; a request without a matching route gets a 404 response.",
    ),
    (
        "[[serve]]",
        &[],
        "A file server. It has the keys of [[boost]], and those of [[boost.route]] for its last \
         route. It needs this route or another one.",
    ),
    (
        "[[serve.route]]",
        &[],
        "A route of the file server above it that comes before its last route. It has the keys of \
         [[boost.route]].",
    ),
];

const MARK: &str = "This page is written by `millrace reference markdown` (or `man`, `toml`) from \
                    the tables of options and limits in crates/proxy/config.";

fn program_page() -> String {
    let mut out = head("MILLRACE", 1);
    out.push_str(
        ".SH NAME\nmillrace \\- a caching HTTP proxy: forward proxy and reverse proxy\n\
         .SH SYNOPSIS\n",
    );
    for (name, _) in COMMANDS {
        let file = match *name {
            "serve" => " \\fIDIR\\fR",
            "run" | "check" => " \\fIFILE.toml\\fR",
            "doctor" => " [\\fIFILE.toml\\fR]",
            _ => "",
        };
        let options = match *name {
            "demo" => "",
            "check" => " [\\fB\\-\\-acme\\fR] [\\fIOPTION\\fR]...",
            "cache" => " \\fIACTION\\fR [\\fIOPTION\\fR]...",
            _ => " [\\fIOPTION\\fR]...",
        };
        let _ = writeln!(out, ".B millrace {name}\\fR{file}{options}\n.br");
    }
    out.push_str(".SH COMMANDS\n");
    for (name, about) in COMMANDS {
        let _ = writeln!(out, ".TP\n.B {name}\n{}.{}", roff(about), alias_of(name));
        out.push_str(match *name {
            "check" => TEST_ORDERS,
            "doctor" => REPORTED_CERTIFICATES,
            _ => "",
        });
    }
    out.push_str(
        ".PP\n.B \\-h\nlists the most used options of a command,\n.B \\-\\-help\nall of them.\n",
    );
    out.push_str(".SH OPTIONS\n");
    for group in Group::ALL {
        let _ = writeln!(out, ".SS {}", roff(group.title()));
        for row in OptionRow::TABLE.iter().filter(|row| row.group == *group) {
            let Some(flag) = row.flag else { continue };
            let value_name = match row.value_type {
                ValueType::Switch => "[on|off]",
                value_type => value_type.value_name(),
            };
            let [flag, value_name] = [flag, value_name].map(roff);
            let _ = writeln!(out, ".TP\n.BI \\-\\-{flag} \" {value_name}\"\n{}", texts(row));
            roff_facts(&mut out, row, &format!("Commands: {}.", row.commands()));
        }
    }
    cache_command::roff_section(&mut out, roff);
    out.push_str(SIGNALS);
    let _ = writeln!(out, "{}", roff(&fixed_settings_sentence()));
    out.push_str(MORE_SIGNALS_AND_STATUS);
    out.push_str(".SH EXAMPLES\n");
    for example in EXAMPLES {
        let (effect, line) = (roff(example.effect), roff(example.line));
        let _ = writeln!(out, ".PP\n{effect}:\n.PP\n.RS 4\n.EX\n{line}\n.EE\n.RE");
    }
    out.push_str(FILES_AND_ENVIRONMENT);
    out
}

/// Returns the other name of a command, as a sentence.
fn alias_of(command: &str) -> String {
    let alias = ALIASES.iter().find(|(_, of)| *of == command);
    alias.map_or_else(String::new, |(alias, _)| format!(" {alias} is another name for it."))
}

const SIGNALS: &str = "\
.SH SIGNALS
.TP
.B SIGTERM, SIGINT
Accept no more connections, finish the requests in progress, and exit with status 0. After the time
of the limit drain_ms, the remaining connections are cut off. A second SIGINT ends the process at
once.
.TP
.B SIGHUP
Read the file of
.B millrace run
again, and the files of certificates and users that this file or the command line names. Apply them
without closing connections, and reopen the access log. If a file is invalid,
or changes a setting that a reload cannot apply, millrace prints one line on standard error and keeps
its configuration.
";

const MORE_SIGNALS_AND_STATUS: &str = "\
.TP
.B SIGUSR1
Reopen the access log.
.SH EXIT STATUS
.TP
.B 0
Success, also at the end of a drain.
.TP
.B 1
The system refused something, such as a port that is in use, or the output could not be written.
.TP
.B 2
An option or a file is invalid.
.TP
.B 3
.B millrace cache purge
matched nothing. With disks the status is 0 nevertheless, because millrace does not count the
responses on disks that a purge matches.
.TP
.B 130
A second SIGINT.
.PP
Each status other than 0 comes with one line on standard error.
";

const TEST_ORDERS: &str = "\
With
.BR \\-\\-acme ,
places a test order for each certificate by ACME and prints the result instead. The process at an
admin address of the file places the orders; if none runs, this one listens at the addresses of the
file meanwhile. The orders go to acme-directory, or to Let's Encrypt's staging directory by default.
Account and certificate are thrown away.
";

const REPORTED_CERTIFICATES: &str = "\
Also report the certificates by ACME in each acme-dir of the file, or without a file in the
default one.
";

const FILES_AND_ENVIRONMENT: &str = "\
.SH FILES
.TP
.I /etc/millrace/millrace.toml
The configuration file by convention; see
.BR millrace.toml (5).
No file is read unless the command line names it.
.TP
.I /run/millrace/admin.sock
The admin address that
.B millrace cache
uses by default.
.TP
.I /run/uselectd.sock
The socket of
.BR uselectd (8)
that engine uselect uses by default.
.TP
.IR /etc/hosts \", \" /etc/resolv.conf
Host names and name servers, read at start.
.TP
.IR /etc/passwd \", \" /etc/group
The users and groups of the option user, read at start.
.SH ENVIRONMENT
.TP
.BR LISTEN_PID \", \" LISTEN_FDS \", \" LISTEN_FDNAMES
Listening sockets passed by a service manager; see
.BR sd_listen_fds (3).
millrace uses those whose addresses are in its configuration.
.TP
.B NOTIFY_SOCKET
Socket for state notifications to the service manager; see
.BR sd_notify (3).
.TP
.BR WATCHDOG_USEC \", \" WATCHDOG_PID
Watchdog of the service manager; see
.BR sd_watchdog_enabled (3).
.TP
.B MILLRACE_TRACE
In debug builds only: if set, events and steps of requests are printed on standard error.
.SH SEE ALSO
.BR millrace.toml (5),
.BR uselectd (8)
";

fn file_page() -> String {
    let mut out = head("MILLRACE.TOML", 5);
    out.push_str(
        ".SH NAME\nmillrace.toml \\- configuration file of millrace\n.SH DESCRIPTION\n\
         A TOML file for\n.BR \"millrace run\" \" and\" \" millrace check\" .\n\
         Unknown keys are errors. Options of the process on the command line override those of\n\
         the file.\n",
    );
    let _ = writeln!(out, "{}\n{VALUES}", roff(&bounds()));
    for (name, scopes, text) in TABLES {
        let _ = writeln!(out, ".SH \"{}\"\n{}", roff(name), roff(text));
        for row in OptionRow::of_scopes(scopes) {
            let _ = writeln!(out, ".TP\n.B {}\n{}", roff(row.key), texts(row));
            roff_facts(&mut out, row, "");
        }
    }
    out.push_str(
        ".SH \"[limits]\"\nLimits and timeouts, and what happens when they are reached.\n",
    );
    for row in Limits::TABLE {
        let [name, text, values] = [row.name, row.text.trim(), &expected_of_limit(row)].map(roff);
        let LimitRow { default, unit, .. } = row;
        let _ =
            writeln!(out, ".TP\n.B {name}\n{text}\nValues: {values}. Default: {default} {unit}.");
    }
    out.push_str(".SH EXAMPLES\n");
    for (number, example) in [HTTPS_EXAMPLE, FILE_EXAMPLE].into_iter().enumerate() {
        let _ = writeln!(out, ".PP\nFile {}:\n.PP\n.EX\n{}.EE", number + 1, roff(example));
    }
    out.push_str(FILE_PAGE_END);
    out
}

/// The example of a file with HTTPS.
const HTTPS_EXAMPLE: &str = include_str!("../../../../examples/https.toml");

/// The example of a file. A test checks it.
pub(super) const FILE_EXAMPLE: &str = "\
# A reverse proxy in front of an application with two servers. Static files are cached for a
# week, and also on disk.
disk = \"/var/cache/millrace:10G\"
access-log = \"/var/log/millrace/access.log\"
admin = \"unix:/run/millrace/admin.sock\"

[limits]
idle_ms = \"30s\"

[[boost]]
listen = [\"0.0.0.0:80\", \"[::]:80\"]

[[boost.route]]
path = \"/static/\"
origins = [\"http://10.0.0.2:8080\"]
cache-ttl = \"override 7d\"

[[boost.route]]
origins = [\"http://10.0.0.2:8080\", \"http://10.0.0.3:8080\"]
check = \"/health\"

# A file server, with an application behind a part of its paths.
[[serve]]
listen = \"0.0.0.0:8000\"
folder = \"/srv/www\"

[[serve.route]]
path = \"/api/\"
origins = [\"http://10.0.0.2:8080\"]

# A forward proxy for a local network.
[[forward]]
listen = \"192.168.0.1:3128\"
allow-client = \"192.168.0.0/16\"
";

const FILE_PAGE_END: &str = "\
.SH FILES
.TP
.I /etc/millrace/millrace.toml
The configuration file by convention.
.SH ENVIRONMENT
millrace does not expand environment variables in the file.
.BR millrace (1)
lists those that the program reads.
.SH SEE ALSO
.BR millrace (1)
";

/// How files write the values of switches and relative paths.
const VALUES: &str = "Instead of the values on and off, a file may also have true and false. A \
                      relative path starts at the working directory of millrace, not at the \
                      directory of the file.";

/// Returns the bounds of a file and of its lists.
fn bounds() -> String {
    let values_max = |key| OptionRow::of_key(key).map_or(0, |row| row.values_max);
    format!(
        "A file has at most {} MiB, {TABLES_MAX} services of each kind, {TABLES_MAX} routes per \
         service, {} origins per route and {} names per list of domains.",
        FILE_BYTES_MAX >> 20,
        values_max("origins"),
        values_max("allow-domain"),
    )
}

fn head(title: &str, section: u8) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(".\\\" {MARK}\n.TH {title} {section} \"\" \"millrace {version}\"\n")
}

/// Returns the summary and the detail of an option for a manual page.
fn texts(row: &OptionRow) -> String {
    roff(&row.sentences())
}

/// Writes the values and the default of an option in a manual page.
fn roff_facts(out: &mut String, row: &OptionRow, more: &str) {
    let repeatable = if row.is_repeatable() { " Repeatable." } else { "" };
    let values = row.value_type.expected();
    let facts = format!("Values: {values}. Default: {}.{repeatable} {more}", row.default_text());
    let _ = writeln!(out, "{}", roff(facts.trim_end()));
}

/// Escapes text for roff, without backticks. No line of these texts begins with a dot or a quote.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('`', "")
}

fn markdown() -> String {
    let mut out = format!("# Reference\n\n{MARK}\n\n## Commands\n\n");
    for (name, about) in COMMANDS {
        let _ = writeln!(out, "- `millrace {name}`: {about}.{}", alias_of(name));
    }
    out.push_str(
        "\n## Options\n\n| option | key in files | commands | values | default | purpose |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in OptionRow::TABLE {
        let flag = row.flag.map_or_else(String::new, |flag| format!("`--{flag}`"));
        let repeatable = if row.is_repeatable() { " Repeatable." } else { "" };
        let key = if row.is_file_key() { format!("`{}`, ", row.key) } else { String::new() };
        let cells = [
            flag,
            format!("{key}{}", row.toml_tables()),
            row.commands(),
            row.value_type.expected(),
            row.default_text().to_owned(),
            format!("{}{repeatable}", row.sentences()),
        ];
        let _ = writeln!(out, "| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    cache_command::markdown_section(&mut out);
    let _ = writeln!(out, "\n## Tables of a file\n\n{} {VALUES}\n", bounds());
    for (name, scopes, text) in TABLES {
        let keys: Vec<_> =
            OptionRow::of_scopes(scopes).map(|row| format!("`{}`", row.key)).collect();
        let keys = match keys.is_empty() {
            true => String::new(),
            false => format!(" Keys: {}.", keys.join(", ")),
        };
        let _ = writeln!(out, "- **{name}**: {text}{keys}");
    }
    out.push_str("- **[limits]**: the limits below.\n\n");
    let _ = writeln!(out, "{}", fixed_settings_sentence());
    out.push_str(
        "\n## Limits\n\n\
         | limit | default | values | subject, and effect when the limit is reached |\n\
         | --- | --- | --- | --- |\n",
    );
    for row in Limits::TABLE {
        let LimitRow { name, default, unit, .. } = row;
        let (values, text) = (expected_of_limit(row), row.text.trim());
        let _ = writeln!(out, "| `{name}` | {default} {unit} | {values} | {text} |");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_files_are_valid() {
        for example in [HTTPS_EXAMPLE, FILE_EXAMPLE] {
            crate::from_toml(example).unwrap();
        }
    }

    #[test]
    fn the_other_lines_of_the_https_example_are_valid() {
        let is_replaced =
            |line: &str| ["listen", "server-name", "acme"].iter().any(|key| line.starts_with(key));
        let lines = HTTPS_EXAMPLE.lines().filter(|line| !is_replaced(line));
        let other = ["listen = ", "certificate = ", "key = ", "redirect-https = "];
        let lines = lines.map(|line| match line.strip_prefix("# ") {
            Some(rest) if other.iter().any(|key| rest.starts_with(key)) => rest,
            _ => line,
        });
        let config = crate::from_toml(&lines.collect::<Vec<_>>().join("\n")).unwrap();
        assert_eq!(config.listeners.len(), 4);
        assert_eq!(config.services[0].tls.as_ref().unwrap().paths().count(), 2);
    }

    #[test]
    fn manual_pages_have_the_usual_sections() {
        for name in ["man", "toml"] {
            let page = page(name).unwrap();
            for section in ["NAME", "EXAMPLES", "FILES", "ENVIRONMENT", "SEE ALSO"] {
                assert!(page.contains(&format!("\n.SH {section}\n")), "{name}: {section}");
            }
        }
    }
}
