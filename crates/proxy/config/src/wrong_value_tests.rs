//! Every option and every key of a file refuses wrong values with an error that names the option or
//! key, the value, and what is expected. The tests walk the tables, so that they cover new rows.

use std::ffi::OsString;

use super::build::expected_of_limit;
use super::error::quoted;
use super::limits::Limits;
use super::options::{COMMANDS, OptionRow, Scope, ValueType};
use super::toml_text::basic_string;
use super::*;

/// Returns values that are wrong for a type. A new type needs at least one.
fn wrong_values(value_type: ValueType) -> Vec<String> {
    let above = |most: u64| (u128::from(most) + 1).to_string();
    let texts: &[&str] = match value_type {
        ValueType::Number { most, .. } | ValueType::NumberOrOff { most, .. } => {
            return vec!["x".to_owned(), "-1".to_owned(), above(most)];
        }
        ValueType::Size { most, .. } => {
            return vec!["lots".to_owned(), "1GB".to_owned(), above(most)];
        }
        ValueType::MemoryShare { most, percent_max, .. } => {
            return vec!["half".to_owned(), above(most), format!("{}%", percent_max + 1)];
        }
        ValueType::Disk { most, .. } => {
            return vec!["/a".to_owned(), "a:1G".to_owned(), format!("/a:{}", above(most))];
        }
        ValueType::Flag | ValueType::Switch => &["maybe", ""],
        ValueType::Keyword(_) => &["no-such-word", ""],
        ValueType::ListenAddress => &["3128", "a:1", "127.0.0.1:70000"],
        ValueType::AdminAddress => &["9180", "a:1", "on"],
        ValueType::ServiceName => &["a b", ""],
        ValueType::HostName => &["10.0.0.1", "a..b"],
        ValueType::MailAddress => &["a", "@a", "a@b@c", ""],
        ValueType::ServerName => &["*.a", "10.0.0.1", "a..b"],
        ValueType::HttpsUrl => &["http://a", "https://", "https://a/b c"],
        ValueType::SocketAddress => &["80", "a:1", "on"],
        ValueType::LogFile => &["", "a\tb", "false"],
        ValueType::Origin => &["ftp://a", "a:80", "http://a/b"],
        ValueType::FastCgi => &["x", "unix:", "a:0", "a:70000", "http://a:1"],
        ValueType::ProgramSocket => &["", "/run/a", "http://a", "unix:"],
        ValueType::Cidr => &["10.0.0.1/8", "x"],
        ValueType::Port => &["0", "70000", "http"],
        ValueType::HostPattern => &["a:80", "*"],
        ValueType::DomainPattern => &["10.0.0.1", "*"],
        ValueType::File | ValueType::Folder => &["", "a\tb"],
        ValueType::FileName => &["", "..", "a/b"],
        ValueType::NamePattern => &["", "a/*"],
        ValueType::ExtensionPattern => &["", "php", ".a/b"],
        ValueType::TryFile => &["", "a.html", "{path}/.."],
        ValueType::FilePath => &["", "index.html", "/a/../b", "{path}"],
        ValueType::MediaPattern => &["", "text", "text/a; b"],
        ValueType::MediaType => &["", ".a", "a=b/c", ".a.b=c/d", ".a=b"],
        ValueType::Charset => &["", "a b"],
        ValueType::CacheControl => &["", "max-age=", "a b"],
        ValueType::Realm => &["", "a\\b"],
        ValueType::PathPrefix => &["a", "/a?b", "/a/../b"],
        ValueType::PassedField => &["Cookie", ""],
        ValueType::CheckPath => &["health", "/a b"],
        ValueType::Statuses => &["99", "299-200"],
        ValueType::Congestion => &["a b", "abcdefghijklmnop"],
        ValueType::User => &["a:", ""],
        ValueType::Duration | ValueType::DurationOrOff => &["60", "soon", "3651d"],
        ValueType::CacheLifetime => &["soon", "60", "override", "404 default", "99 origin"],
        ValueType::FieldName => &["a b", ""],
        ValueType::FieldOrCookie => &["X-Device", "field:a b"],
        ValueType::QueryParameter => &["a=b", ""],
        // Another test covers the values of limits.
        ValueType::Limit => &["x", "no-such-limit=1"],
    };
    texts.iter().copied().map(str::to_owned).collect()
}

/// Returns the wrong values of a row, at least one.
fn wrong_values_of(row: &OptionRow) -> Vec<String> {
    let values = wrong_values(row.value_type);
    assert!(!values.is_empty(), "{} has no wrong value", row.key);
    values
}

/// Checks that `result` is an error of one line with all `parts`.
fn assert_refused(context: &str, result: Result<Config, ConfigError>, parts: &[&str]) {
    let Err(error) = result else { panic!("{context}: is accepted") };
    let message = error.to_string();
    assert!(message.lines().count() == 1, "{context}: {message}");
    for part in parts {
        assert!(message.contains(part), "{context}: {message:?} lacks {part:?}");
    }
}

/// Returns the configuration of a command with one more option.
fn with_option(command_name: &str, option: &str) -> Result<Config, ConfigError> {
    let mut words = vec!["millrace", command_name];
    match command_name {
        "boost" if !option.starts_with("--origin=") => words.push("--origin=http://a"),
        "serve" => words.push("/srv"),
        "run" | "check" => words.push("a.toml"),
        _ => {}
    }
    words.push(option);
    match command(words.into_iter().map(OsString::from))? {
        Command::Serve(raw) => from_raw(&raw),
        Command::Run { overrides, .. } | Command::Check { overrides, .. } => {
            from_raw(&parse_toml("a.toml", "[[forward]]", &overrides)?)
        }
        Command::Doctor { overrides, .. } => process_from_raw(&overrides),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_option_refuses_wrong_values() {
    let mut count = 0;
    for (command, _) in COMMANDS {
        for row in OptionRow::TABLE.iter().filter(|row| row.is_of_command(command)) {
            let flag = format!("--{}", row.flag.unwrap());
            for value in wrong_values_of(row) {
                let option = format!("{flag}={value}");
                let (found, expected) = match row.value_type {
                    ValueType::Flag => (quoted(&value), "the option alone".to_owned()),
                    ValueType::Limit if value.contains('=') => {
                        ("\"no-such-limit\"".to_owned(), "head_ms".to_owned())
                    }
                    _ => (quoted(&value), row.value_type.expected()),
                };
                let context = format!("millrace {command} {option:?}");
                let result = with_option(command, &option);
                assert_refused(&context, result, &[&format!("{flag}: "), &found, &expected]);
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} values");
}

#[test]
fn every_option_but_switches_needs_a_value() {
    for (command, _) in COMMANDS {
        for row in OptionRow::TABLE.iter().filter(|row| row.is_of_command(command)) {
            let flag = format!("--{}", row.flag.unwrap());
            if row.value_type == ValueType::Switch {
                let [alone, on] = [flag.clone(), format!("{flag}=on")];
                assert_eq!(with_option(command, &alone), with_option(command, &on), "{flag}");
            } else if row.value_type != ValueType::Flag {
                let context = format!("millrace {command} {flag}");
                let parts = [&format!("{flag}: has no value")[..], &row.value_type.expected()];
                assert_refused(&context, with_option(command, &flag), &parts);
            }
        }
    }
}

/// Returns files that set the key of a row to a value: one for each table that takes the key.
fn files(row: &OptionRow, value: &str) -> Vec<String> {
    let line = format!("{} = {value}", row.key);
    let top = || format!("{line}\n[[forward]]");
    let forward = || format!("[[forward]]\n{line}");
    let boost = || format!("[[boost]]\n{line}\n[[boost.route]]\norigins = 'http://a'");
    let served = || format!("[[serve]]\norigins = 'http://a'\n{line}");
    let own = match (row.key, row.scope) {
        ("origins" | "folder" | "fastcgi" | "cgi" | "program", _) => "",
        (_, Scope::Folder) => "folder = '/srv'",
        _ => "origins = 'http://a'",
    };
    let route = |service: &str| format!("[[{service}]]\n[[{service}.route]]\n{own}\n{line}");
    let routes = || vec![route("boost"), route("serve"), format!("[[serve]]\n{own}\n{line}")];
    match row.scope {
        Scope::Process => vec![top()],
        Scope::Start => Vec::new(),
        Scope::Service => vec![forward(), boost(), served()],
        Scope::Forward => vec![forward()],
        Scope::Boost => vec![boost(), served()],
        Scope::Route | Scope::Folder => routes(),
        Scope::Cache => [vec![forward(), boost()], routes()].concat(),
    }
}

#[test]
fn every_key_of_a_file_refuses_wrong_values() {
    for row in OptionRow::TABLE.iter().filter(|row| row.is_file_key()) {
        let (key, expected) = (format!(": {}: ", row.key), row.value_type.expected());
        for value in wrong_values_of(row) {
            let written = basic_string(&value);
            let list = row.is_repeatable().then(|| format!("[{written}]"));
            let number = value.parse::<i64>().is_ok().then(|| value.clone());
            for written in std::iter::once(written).chain(list).chain(number) {
                let files = files(row, &written);
                assert!(!files.is_empty(), "{}", row.key);
                for file in files {
                    let parts = ["configuration:", &key, &quoted(&value), &expected];
                    assert_refused(&file, from_toml(&file), &parts);
                }
            }
        }
        let is_wrong = |switch: &bool| row.value_type.keyword_of_bool(*switch).is_none();
        let switches = [true, false].into_iter().filter(is_wrong).map(|switch| switch.to_string());
        for value in ["1.5", "{}", "1979-05-27"].map(str::to_owned).into_iter().chain(switches) {
            for file in files(row, &value) {
                let parts = [&key[..], &quoted(&value), "has the wrong type", &expected];
                assert_refused(&file, from_toml(&file), &parts);
            }
        }
    }
}

#[test]
fn an_empty_list_is_an_error_or_means_what_it_says() {
    let repeatable = OptionRow::TABLE.iter().filter(|row| row.is_file_key() && row.is_repeatable());
    for row in repeatable {
        for file in files(row, "[]") {
            let result = from_toml(&file);
            if row.may_be_empty {
                let config = result.unwrap_or_else(|error| panic!("{file}: {error}"));
                assert_eq!(from_toml(&to_toml(&config)), Ok(config), "{file}");
            } else {
                let parts = [&format!(": {}: ", row.key)[..], "[]", &row.value_type.expected()];
                assert_refused(&file, result, &parts);
            }
        }
    }
    let route = |line: &str| {
        let file = format!("[[boost]]\n[[boost.route]]\norigins = 'http://a'\n{line}");
        from_toml(&file).unwrap().services[0].routes()[0].clone()
    };
    assert_eq!(route("retry-on = []"), route("retry-on = 'off'"));
    assert_eq!(route("cache-target = []"), route("cache-target = 'off'"));
    let ServiceRole::Forward(rules) =
        from_toml("[[forward]]\nallow-port = []").unwrap().services[0].role.clone()
    else {
        panic!("the service is a forward proxy");
    };
    assert!(rules.ports.is_empty());
}

#[test]
fn every_limit_refuses_wrong_values() {
    for row in Limits::TABLE {
        let (least, most) = row.bounds;
        let mut values = vec!["x".to_owned(), "1.5".to_owned(), (most + 1).to_string()];
        values.extend(least.checked_sub(1).map(|below| below.to_string()));
        for value in values {
            let (found, expected) = (quoted(&value), expected_of_limit(row));
            let option = format!("--limit={}={value}", row.name);
            let place = format!("--limit {}: ", row.name);
            assert_refused(&option, with_option("forward", &option), &[&place, &found, &expected]);
            let key = format!("configuration:2: {}: ", row.name);
            for written in [basic_string(&value), value.clone()] {
                // Without quotes, `x` is not a value of TOML.
                if written != "x" {
                    let file = format!("[limits]\n{} = {written}\n[[forward]]", row.name);
                    assert_refused(&file, from_toml(&file), &[&key, &found, &expected]);
                }
            }
        }
    }
}
