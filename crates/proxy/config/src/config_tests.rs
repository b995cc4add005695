//! Tests of files and command lines: their configurations and their errors.

use super::options::{OptionRow, ValueType};
use super::*;

const FULL: &str = r#"
workers = 3
memory = "64M"
user = "www-data:33"
sandbox = "off"
sandbox-folder = ["/var/log/millrace", "/run/millrace"]
engine = "epoll"
splice = "always"
access-log = "access.log"
log-format = "json"
admin = ["127.0.0.1:9180", "unix:/run/millrace-admin.sock"]
admin-token-file = "/etc/millrace/token"
admin-name = "Metrics.example"

[limits]
head_ms = "10s"
connections = 1000

[[boost]]
listen = ["127.0.0.1:8080", "unix:/run/millrace.sock"]
trust = ["10.0.0.0/8"]
proxy-protocol = true

[[boost.route]]
host = "*.Example.org"
path = "/static/"
origins = ["http://10.0.0.2:8081", "http://[::1]:8082", "unix:/run/app,1.sock"]
balance = "least-outstanding"
host-header = "origin"

[[boost.route]]
origins = "http://app.example:8083"

[[forward]]
listen = "0.0.0.0:3128"
allow-client = ["192.168.0.0/16", "::1"]
allow-port = [25, "all"]
deny-target = ["1.2.3.4"]
"#;

#[test]
fn a_file_becomes_a_configuration() {
    let config = from_toml(FULL).unwrap();
    assert_eq!((config.workers, config.memory_bytes), (3, 64 << 20));
    assert_eq!(config.splice.thresholds(), Some(Thresholds::SPLICE));
    assert_eq!((config.limits.head_ms, config.limits.connections), (10_000, 1000));
    assert_eq!(config.access_log.as_ref().unwrap().format, LogFormat::Json);
    assert_eq!((config.admin.len(), config.admin_name.as_deref()), (2, Some("metrics.example")));
    let [forward, boost] = config.services.as_slice() else { panic!("two services") };
    let ServiceRole::Forward(rules) = &forward.role else { panic!("forward proxies come first") };
    assert_eq!((rules.private, rules.ports.as_slice()), (false, &[25, 0][..]));
    assert_eq!((forward.clients.len(), rules.denied[0].prefix), (2, 32));
    let ServiceRole::Boost(routes) = &boost.role else { panic!("reverse proxies come last") };
    assert_eq!(routes[0].host.as_deref(), Some("*.example.org"));
    assert_eq!((routes[0].origins.len(), routes[0].host_header), (3, HostHeader::Origin));
    assert_eq!((routes[1].path.as_str(), routes[1].balance), ("/", Balance::RoundRobin));
    let of_boost: Vec<_> = config.listeners.iter().filter(|l| l.service == 1).collect();
    assert!(of_boost.len() == 2 && of_boost.iter().all(|l| l.proxy_protocol));
    fuzz_configuration(FULL.as_bytes());
}

#[test]
fn a_command_line_and_a_file_become_the_same_configuration() {
    let words = "boost --origin http://a:1,unix:/b --origin http://[::1] --balance \
                 least-outstanding --host-header origin --listen [::1]:0 --workers 2 --limit idle_ms=5s \
                 --access-log - --no-cache --allow-client 10.0.0.0/8";
    let file = r#"
        workers = 2
        access-log = "-"
        no-cache = true
        limits = { idle_ms = 5000 }
        boost = { listen = "[::1]:0", allow-client = "10.0.0.0/8", route = { host-header = "origin",
            origins = ["http://a:1", "unix:/b", "http://[::1]:80"],
            balance = "least-outstanding" } }
    "#;
    assert_eq!(from_arguments(words.split_whitespace()), from_toml(file));
    let forward = from_arguments(["forward", "--workers", "1"]).unwrap();
    assert_eq!(forward.listeners[0].address.to_string(), "127.0.0.1:3128");
    assert_eq!(Ok(forward), from_toml("workers = 1\n[[forward]]"));
}

#[test]
fn options_of_a_command_line_override_those_of_the_file() {
    let words = ["millrace", "check", "f", "--workers", "7", "--limit", "fields=9"];
    let Command::Check { overrides, .. } = command(words.map(OsString::from)).unwrap() else {
        panic!("the command is check");
    };
    let file = "workers = 2\nmemory = \"32M\"\n[limits]\nfields = 8\n[[forward]]";
    let config = from_raw(&parse_toml("f", file, &overrides).unwrap()).unwrap();
    assert_eq!((config.workers, config.limits.fields), (7, 9));
    assert_eq!(config.memory_bytes, 32 << 20);
}

#[test]
fn default_target_rules_depend_on_the_listeners() {
    let rules =
        |words: &str| match from_arguments(words.split(' ')).unwrap().services.remove(0).role {
            ServiceRole::Forward(rules) => rules,
            ServiceRole::Boost(_) => panic!("the service is a forward proxy"),
        };
    let local = rules("forward --listen 127.0.0.1:0 --listen [::1]:0 --listen unix:/a");
    assert!(local.private && local.ports == [0]);
    let open = rules("forward --listen 127.0.0.1:0 --listen 0.0.0.0:0 --allow-client 10.0.0.0/8");
    assert!(!open.private && open.ports.is_empty());
    let set = rules("forward --listen 10.0.0.1:0 --allow-client 10.0.0.0/8 --allow-private on");
    assert!(set.private && set.ports.is_empty());
    assert!(!rules("forward --private off").private);
}

/// Asserts that each text is refused with one line that holds all of its parts.
fn assert_refused<T: fmt::Debug>(
    cases: &[(&str, &[&str])],
    read: impl Fn(&str) -> Result<T, ConfigError>,
) {
    for (text, parts) in cases {
        let message = read(text).expect_err(text).to_string();
        assert!(!message.contains('\n') && message.contains(" (expected: "), "{message}");
        for part in *parts {
            assert!(message.contains(part), "{text:?}: {message:?} lacks {part:?}");
        }
    }
}

#[test]
fn errors_of_a_file_name_line_key_and_what_is_expected() {
    assert_refused(
        &[
            ("workers = 0\n[[forward]]", &["configuration:1: workers", "\"0\"", "1 to 1024"]),
            ("\n\nworkers = [1]", &["configuration:3: workers", "wrong type"]),
            ("workers = 1.5", &["\"1.5\"", "wrong type"]),
            ("worker = 1", &["configuration:1", "unknown key \"worker\"", "\"workers\"", "memory"]),
            ("limit = 'a=1'", &["unknown key \"limit\"", "limits"]),
            ("check-interval = 1", &["did you mean \"check_interval_ms\"?", "in [limits]"]),
            ("weight = 2", &["unknown key \"weight\"", "origins lists several times"]),
            ("[limits]\nheads_ms = 1", &["configuration:2", "\"head_ms\"", "connect_ms"]),
            ("[limits]\nhead_ms = 1", &["configuration:2: head_ms", "too small", "100ms to 1h"]),
            ("[limits]\nfields = -1", &["\"-1\" is not a whole number", "8 to 4096 fields"]),
            ("limits = 1", &["limits", "[limits]"]),
            ("workers = 2", &["no service", "[[forward]]"]),
            ("[[boost]]", &["configuration:1: [[boost]]", "no route", "[[boost.route]]"]),
            ("[[boost]]\n[[boost.route]]", &["[[boost.route]]", "origins is missing", "http://"]),
            (
                "[[boost]]\nallow-port = 1",
                &["configuration:2: allow-port: does not belong in [[boost]]", "in [[forward]])"],
            ),
            (
                "[[forward]]\norigins = 'http://a'",
                &["not belong in [[forward]]", "[[boost.route]], [[serve]] and [[serve.route]])"],
            ),
            (
                "[[boost]]\n[[boost.route]]\npath-strict = true",
                &["path-strict: does not belong in [[boost.route]] (expected: in [[boost]] and"],
            ),
            ("[[forward]]\nworkers = 2", &["(expected: at the top level)"]),
            ("head_ms = 1000", &["at the top level (expected: in [limits])"]),
            ("[[boost]]\nallow-prt = 1", &["unknown key \"allow-prt\"", "allow-client, deny-"]),
            ("boost = 1", &["boost", "not a table"]),
            ("boost = [1]", &["boost", "not a table"]),
            ("[[forward]]\nlisten = ['a']", &["configuration:2: listen", "no port", "unix:PATH"]),
            ("[[forward]]\nlisten = '0.0.0.0:1'", &["listen", "allow-client is missing"]),
            ("[[forward]]\nproxy-protocol = true", &["proxy-protocol", "needs trust"]),
            ("[[forward]]\n[[forward]]", &["127.0.0.1:3128 is used twice"]),
            ("admin = '127.0.0.1:3128'\n[[forward]]", &["used twice"]),
            ("admin = ['unix:/a', 'unix:/a']\n[[forward]]", &["used twice"]),
            ("admin-name = '10.0.0.1'\n[[forward]]", &["admin-name", "is an address"]),
            ("admin-token-file = ''\n[[forward]]", &["admin-token-file", "is empty"]),
            ("workers = 64\nmemory = '8M'\n[[forward]]", &["configuration:2: memory", "64M"]),
            ("engine = 'kqueue'\n[[forward]]", &["engine", "\"kqueue\"", "auto, epoll, uring"]),
            ("a = = 1", &["configuration:1", "TOML"]),
            ("workers = 1\nworkers = 2", &["configuration:2", "TOML"]),
        ],
        from_toml,
    );
}

#[test]
fn a_program_is_the_only_origin_of_its_route() {
    let line = from_arguments("boost --program unix:/run/a --cache on".split(' ')).unwrap();
    let route = &line.services[0].routes()[0];
    assert_eq!(route.protocol, OriginProtocol::Program);
    assert_eq!(route.origins, [Origin::Unix(std::path::Path::new("/run/a").into())]);
    assert!(route.cache.is_none(), "the program has its responses in memory");
    let file = "[[boost]]\n[[boost.route]]\nprogram = 'unix:/run/a'\nupload-buffer = '2M'\n\
                host-header = 'origin'\ncompress = 'on'";
    for config in [line, from_toml(file).unwrap()] {
        let written = to_toml(&config);
        assert_eq!(from_toml(&written), Ok(config), "{written}");
    }
    let with = |line: &str| format!("[[serve]]\nprogram = 'unix:/run/a'\n{line}");
    for (text, expected) in [
        (
            with("folder = '/srv'"),
            "program: cannot be combined with folder, origins, fastcgi or cgi",
        ),
        (with("origins = 'http://a'"), "program: cannot be combined with"),
        (with("cgi = '/srv'"), "program: cannot be combined with"),
        (with("balance = 'round-robin'"), "balance: has no effect with program"),
        (with("retry-on = ['malformed']"), "retry-on: has no effect with program"),
        (with("index = 'a'"), "index: has no effect: the route has no folder"),
        ("[[serve]]\nprogram = 'http://a'".to_owned(), "(expected: unix:PATH)"),
        ("[[serve]]\nprogram = ['unix:/a', 'unix:/b']".to_owned(), "program"),
    ] {
        let error = from_toml(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn pipelining_needs_a_limit_of_connections_that_clients_share() {
    let limit = "[limits]\norigin_connections = 8\n";
    let with = |limits: &str, lines: &str| {
        from_toml(&format!("{limits}[[boost]]\n[[boost.route]]\norigins = 'http://a'\n{lines}"))
    };
    let depth = |config: Config| config.services[0].routes()[0].pipeline_depth;
    assert_eq!(with("", "").map(depth), Ok(1));
    assert_eq!(with("", "origin-pipelining = false").map(depth), Ok(1));
    let config = with(limit, "origin-pipelining = 4").unwrap();
    assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
    assert_eq!(depth(config), 4);
    for (limits, lines, expected) in [
        ("", "origin-pipelining = 4", "has no effect without the limit origin_connections"),
        (limit, "origin-pipelining = 4\nsend-proxy = 'v1'", "has no effect with send-proxy"),
        (limit, "origin-pipelining = 1", "(expected: a whole number from 2 to 16, off)"),
    ] {
        let error = with(limits, lines).unwrap_err().to_string();
        assert!(error.contains("origin-pipelining") && error.contains(expected), "{error}");
    }
}

#[test]
fn errors_of_a_command_line_name_the_option_and_what_is_expected() {
    assert_refused(
        &[
            ("proxy", &["unknown command \"proxy\"", "forward, boost, serve"]),
            ("bost", &["did you mean \"boost\""]),
            ("--workers 2", &["unknown option \"--workers\"", "forward"]),
            (
                "forward --worker 2",
                &[
                    "forward: unknown option \"--worker\"",
                    "did you mean \"--workers\"",
                    "millrace forward --help",
                ],
            ),
            (
                "forward --check-interval 1s",
                &["unknown option", "did you mean \"--limit check_interval_ms=VALUE\"?"],
            ),
            ("forward --origin http://a", &["forward: --origin is an option of boost, serve only"]),
            ("forward --workers", &["--workers: has no value", "1 to 1024"]),
            ("forward --workers many", &["--workers: \"many\" is not a whole number", "1 to 1024"]),
            ("forward --workers 1 --workers 2", &["--workers: is given twice"]),
            ("forward --engine kqueue", &["--engine: \"kqueue\"", "auto, epoll, uring"]),
            ("forward --memory 1B", &["--memory: \"1B\" is not a size", "1M to 16T"]),
            ("forward --no-cache=1", &["--no-cache: \"1\" is given to an option without a value"]),
            ("forward --listen 0.0.0.0:1", &["--listen", "--allow-client"]),
            ("forward --user a:", &["--user: \"a:\" is not the name of a user", "auto, USER"]),
            ("forward --sandbox on", &["--sandbox: \"on\"", "auto, off"]),
            ("forward --limit x", &["--limit", "NAME=VALUE"]),
            (
                "forward --limit idle=5",
                &["--limit: unknown limit \"idle\"", "did you mean", "idle_ms"],
            ),
            (
                "forward --limit idle_ms=5x",
                &["--limit idle_ms: \"5x\" is not a time", "100ms to 24h"],
            ),
            ("forward --allow-port 0", &["--allow-port: \"0\" is not a port", "65535"]),
            ("forward --allow-private maybe", &["--allow-private: \"maybe\"", "on, off"]),
            ("forward extra", &["forward: unknown argument \"extra\""]),
            ("boost", &["boost: --origin is missing", "http://"]),
            ("boost --origin ftp://a", &["--origin", "https://", "http://HOST"]),
            ("boost --origin http://a --proxy-protocol", &["--proxy-protocol", "--trust CIDR"]),
            ("boost --origin http://a --trust 10.0.0.1/8", &["--trust", "below its prefix"]),
            ("run", &["run: the file is missing", "millrace run FILE"]),
            ("demo --workers 1", &["demo: --workers is an option of forward, boost, serve"]),
        ],
        |text| from_arguments(text.split_whitespace()).map(|_| ()),
    );
}

/// Returns the output of `--help` for a command.
pub(super) fn help(name: &str) -> String {
    match command(["millrace", name, "--help"].map(OsString::from)) {
        Ok(Command::Print(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_row_is_in_help_and_in_every_page() {
    for row in OptionRow::TABLE {
        let roff = |text: &str| text.replace('-', "\\-");
        for (command, _) in options::COMMANDS {
            let help = help(command);
            if let Some(flag) = row.flag.filter(|_| row.is_of_command(command)) {
                assert!(help.contains(&format!("--{flag}")), "{command} {flag}");
                let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(words.contains(row.summary), "{command} {flag}: {words}");
            }
        }
        if let Some(flag) = row.flag {
            assert!(page("man").unwrap().contains(&format!("\\-\\-{}", roff(flag))), "{flag}");
        }
        assert!(page("markdown").unwrap().contains(row.summary), "{}", row.key);
        assert!(page("markdown").unwrap().contains(row.detail), "{}", row.key);
        if row.value_type != ValueType::Limit && row.scope != options::Scope::Start {
            assert!(
                page("toml").unwrap().contains(&format!(".B {}\n", roff(row.key))),
                "{}",
                row.key
            );
        }
    }
    for row in Limits::TABLE {
        assert!(page("toml").unwrap().contains(&format!(".B {}\n", row.name)), "{}", row.name);
        assert!(page("markdown").unwrap().contains(&format!("`{}`", row.name)), "{}", row.name);
    }
}

#[test]
fn every_default_without_parentheses_is_valid() {
    for row in OptionRow::TABLE.iter().filter(|row| !row.default.starts_with('(')) {
        let flag = row.flag.filter(|_| row.value_type != ValueType::Flag);
        let Some(flag) = flag else { continue };
        let commands = ["forward", "boost", "serve"];
        let command = commands.into_iter().find(|command| row.is_of_command(command)).unwrap();
        let origin = match command {
            "boost" if flag == "upload-buffer" => vec!["--fastcgi", "unix:/a"],
            "boost" if flag.starts_with("compress-") => {
                vec!["--origin", "http://a", "--compress", "on"]
            }
            "boost" => vec!["--origin", "http://a"],
            "serve" if flag == "extensions" => vec!["/srv", "--fastcgi", "unix:/a"],
            "serve" => vec!["/srv"],
            _ => vec![],
        };
        let option = format!("--{flag}={}", row.default);
        let plain = from_arguments([vec![command], origin.clone()].concat()).unwrap();
        let given = from_arguments([vec![command, &option], origin].concat()).unwrap();
        assert_eq!(plain, given, "{flag}");
    }
}

#[test]
fn the_committed_pages_equal_the_tables() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    for (name, file, _) in PAGES {
        let committed = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        assert!(
            committed == page(name).unwrap(),
            "{file} differs; run: millrace reference {name} > {file}"
        );
    }
}

#[test]
fn the_fuzz_corpus_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/configuration");
    let mut count = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let text = std::fs::read(entry.unwrap().path()).unwrap();
        fuzz_configuration(&text);
        // Also each prefix of an entry, and each entry without one byte.
        for end in 0..text.len() {
            fuzz_configuration(&text[..end]);
            fuzz_configuration(&[&text[..end], &text[end + 1..]].concat());
        }
        count += 1;
    }
    assert!(count >= 10, "the corpus has {count} entries");
}

#[test]
fn tls_listeners_need_certificates_with_keys() {
    let boost = |words: &str| {
        let words = format!("boost --origin=http://a {words}");
        from_arguments(words.split_whitespace())
    };
    let config = boost("--listen=tls://[::1]:1 --listen=[::1]:2 --certificate=a --key=b").unwrap();
    let [secured, plain] = &config.listeners[..] else { panic!("two listeners") };
    assert_eq!((secured.url(), plain.url()), ("tls://[::1]:1".into(), "[::1]:2".into()));
    let tls = config.services[0].tls.as_ref().unwrap();
    assert_eq!((tls.files.len(), &tls.certificates), (1, &None));
    assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
    for (words, message) in [
        ("--listen=tls://[::1]:1", "--listen: a tls:// address needs --certificate and --key"),
        ("--listen=tls://[::1]:1 --key=b", "--key: 0 --certificate and 1 --key"),
        ("--listen=tls://[::1]:1 --certificate=a", "--certificate: 1 --certificate and 0 --key"),
        ("--certificate=a --key=b", "--certificate: --certificate has no effect"),
        ("--ticket-key-file=a", "--ticket-key-file: --ticket-key-file has no effect"),
        ("--listen=tls://[::1]:1 --listen=[::1]:1 --certificate=a --key=b", "used twice"),
        ("--listen=tls://unix:/run/a --certificate=a --key=b", "a port that is not a number"),
    ] {
        let error = boost(words).unwrap_err().to_string();
        assert!(error.contains(message), "{words}: {error}");
    }
}

#[test]
fn fetch_ca_needs_fetch_https() {
    let forward = |words: &str| from_arguments(format!("forward {words}").split_whitespace());
    for words in ["--fetch-ca=a", "--fetch-ca=a --fetch-https=off"] {
        let error = forward(words).unwrap_err().to_string();
        let message =
            "--fetch-ca: has no effect without --fetch-https (expected: --fetch-https on)";
        assert_eq!(error, message);
    }
    let config = forward("--fetch-https=on --fetch-ca=a").unwrap();
    let fetch = config.services[0].fetch_tls.as_ref().unwrap();
    assert!(fetch.verify && fetch.ca.is_some());
    assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
    assert_eq!(forward("").unwrap().services[0].fetch_tls, None);
    let error = forward("--fetch-https=on --share-schemes=on").unwrap_err().to_string();
    let message = "--share-schemes: cannot be combined with --fetch-https (expected: one of them)";
    assert_eq!(error, message);
    assert!(forward("--fetch-https=on --no-cache").is_ok());
}

#[test]
fn admin_addresses_with_tls_need_a_certificate() {
    let forward = |words: &str| from_arguments(format!("forward {words}").split_whitespace());
    for (words, message) in [
        ("--admin=tls://[::1]:1", "--admin: a tls:// address needs --admin-certificate and"),
        ("--admin=tls://[::1]:1 --admin-key=a", "--admin: a tls:// address needs"),
        ("--admin=[::1]:1 --admin-key=a", "--admin-key: has no effect: no admin address uses TLS"),
        ("--admin-certificate=a", "--admin-certificate: has no effect: no admin address"),
    ] {
        let error = forward(words).unwrap_err().to_string();
        assert!(error.contains(message), "{words}: {error}");
    }
    let words = "--admin=tls://[::1]:1 --admin=[::1]:2 --admin-certificate=b --admin-key=c";
    let config = forward(words).unwrap();
    assert!(config.admin[0].tls && !config.admin[1].tls && config.admin_tls.is_some());
    assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
}

#[test]
fn redirects_and_hsts_need_a_listener_with_tls() {
    let boost = |options: &str| {
        let words = format!("boost --origin http://a {options}");
        from_arguments(words.split_whitespace())
    };
    let tls = "--certificate=a --key=b --listen=[::1]:80 --listen=tls://[::1]";
    let secure = "--certificate=a --key=b --listen=tls://[::1]:443";
    let service = |options: &str| boost(options).unwrap().services.remove(0);
    let plain = service("");
    assert_eq!((plain.redirect_port, plain.hsts_s), (None, None));
    let both =
        service(&format!("{tls}:444 --listen=tls://[::1]:443 --redirect-https=on --hsts=1d"));
    assert_eq!((both.redirect_port, both.hsts_s), (Some(443), Some(86_400)));
    assert_eq!(service(&format!("{tls}:444 --redirect-https=on")).redirect_port, Some(444));
    assert_eq!(service(&format!("{tls}:444 --hsts=off")).hsts_s, None);
    for (options, expected) in [
        ("--redirect-https=on", "--redirect-https: needs a tls:// listener"),
        (&format!("{tls}:0 --redirect-https=on"), "a port other than 0 (expected: --listen tls://"),
        (&format!("{secure} --redirect-https=on"), "has no effect: no plain listener"),
        ("--hsts=1d", "--hsts: no listener of the service has TLS (expected: --listen tls://"),
    ] {
        let message = boost(options).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    let toml = "[[boost]]\nlisten = ['tls://[::1]:1', '[::1]:80']\ncertificate = 'a'\nkey = 'b'\n\
                redirect-https = true\nhsts = '365d'\n[[boost.route]]\norigins = 'http://a'\n";
    let config = from_toml(toml).unwrap();
    assert_eq!(from_toml(&to_toml(&config)).unwrap(), config);
}

#[test]
fn client_certificates_need_authorities_and_a_listener_with_tls() {
    let boost = |words: &str| {
        let words = format!("boost --origin=http://a {words}");
        from_arguments(words.split_whitespace())
    };
    let secure =
        |words: &str| boost(&format!("--listen=tls://[::1]:1 --certificate=a --key=b {words}"));
    assert_eq!(secure("").unwrap().services[0].tls.as_ref().unwrap().client_certificates, None);
    let words = "--client-certificate=optional --client-ca=c --client-ca=d --client-crl=e \
                 --client-certificate-name=*.A.example";
    let config = secure(words).unwrap();
    let rules = config.services[0].tls.as_ref().unwrap().client_certificates.as_ref().unwrap();
    assert_eq!((rules.authorities.len(), rules.revocation_lists.len()), (2, 1));
    assert_eq!(rules.names, ["*.a.example"]);
    assert_eq!(from_toml(&to_toml(&config)), Ok(config.clone()));
    for (result, message) in [
        (secure("--client-certificate=required"), "--client-certificate: needs --client-ca"),
        (secure("--client-ca=c"), "--client-ca: has no effect: --client-certificate is off"),
        (secure("--client-crl=c"), "--client-crl: has no effect: --client-certificate is off"),
        (
            secure("--client-certificate-name=a.example"),
            "--client-certificate-name: has no effect: --client-certificate is off",
        ),
        (secure("--client-certificate=maybe"), "(expected: off, optional, required)"),
        (
            boost("--client-certificate=optional --client-ca=c"),
            "--client-certificate: --client-certificate has no effect: no listener uses TLS",
        ),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    // The host of a request to a forward proxy is its target, so no Host could be misdirected.
    let forward = ["forward", "--client-certificate-name=a.example"];
    let error = from_arguments(forward).unwrap_err().to_string();
    assert!(error.contains("--client-certificate-name"), "{error}");
}
