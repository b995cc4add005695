//! The table of options, and its rows for services and routes.

use super::option_row::{joined, row};
use super::options::{Group, OptionRow, Scope};
use super::value_type::ValueType;
use Group::{Access, Caching, Connections, Listeners, Origins, Targets, Tls};
use Scope::{Boost, Cache, Forward, Route, Service};
use millrace_tls::TICKET_KEYS_MAX;

/// The maximum number of host names in one list. At 32 bytes per name, such a list fills a quarter
/// of the largest file.
const DOMAINS_MAX: usize = 8192;

impl OptionRow {
    /// The rows, in the order of the reference.
    pub const TABLE: &'static [Self] =
        &joined::<
            {
                Self::SERVICE.len()
                    + Self::FOLDER.len()
                    + Self::COMPRESSION.len()
                    + Self::PROCESS.len()
            },
        >(&[Self::SERVICE, Self::FOLDER, Self::COMPRESSION, Self::PROCESS]);

    /// The rows for services and routes.
    const SERVICE: &'static [Self] = &[
        row(
            Service,
            Listeners,
            "name",
            ValueType::ServiceName,
            "(that of its table, such as boost, if there is one such table; otherwise the first \
             listen address)",
        )
        .only_in_files()
        .summary("Name of the service in cache keys and metrics")
        .detail(
            "No other service may have the same name. A service whose name changes does not find \
             the responses that it stored before.",
        ),
        row(
            Service,
            Listeners,
            "listen",
            ValueType::ListenAddress,
            "(127.0.0.1:3128 for forward, 127.0.0.1:8080 for boost and serve)",
        )
        .command_defaults(&[
            ("forward", "127.0.0.1:3128"),
            ("boost", "127.0.0.1:8080"),
            ("serve", "127.0.0.1:8080"),
        ])
        .repeatable(64)
        .not_empty()
        .summary("Listen on ADDRESS:PORT, or with TLS on tls://ADDRESS:PORT")
        .detail(
            "Port 0 lets the kernel choose a port. Each address is printed on standard error once it \
             accepts connections.",
        ),
        row(Service, Tls, "certificate", ValueType::File, "(none)")
            .repeatable(256)
            .not_empty()
            .summary("PEM file with a certificate chain for tls://; several are chosen by name")
            .detail(
                "The certificate of the server comes first, then those that lead to a root. The \
                 name that a client asks for (SNI) selects the certificate: an exact name before \
                 a wildcard. If several certificates have the name, for example one with an ECDSA \
                 and one with an RSA key, the client's algorithms decide.",
            ),
        row(Service, Tls, "key", ValueType::File, "(none)")
            .repeatable(256)
            .not_empty()
            .summary("PEM file with the private key of the certificate at the same position")
            .detail("Other users must not be able to read the file."),
        row(
            Service,
            Tls,
            "tls-versions",
            ValueType::Keyword(&["1.2-1.3", "1.3", "1.2"]),
            "1.2-1.3",
        )
        .summary("Versions of TLS"),
        row(Service, Tls, "unknown-name", ValueType::Keyword(&["first", "refuse"]), "first")
            .summary("Certificate of a client that asks for an unknown name")
            .detail("first: the first certificate. refuse: a fatal alert."),
        row(Service, Tls, "ticket-key-file", ValueType::File, "(random keys)")
            .repeatable(TICKET_KEYS_MAX)
            .not_empty()
            .summary("File with keys of session tickets that the servers of a cluster share")
            .detail(
                "Clients resume a session at any server with the same keys and the same name of the \
                 service. A key has 48 or 80 random bytes (openssl rand 80). A file has one or more \
                 keys, and all files together have at most 3. The first key seals tickets, all of \
                 them open tickets. To replace the keys, add the new key behind the others on every \
                 server, then make it the first, and remove the old one after 24 hours. The files \
                 are read again when they change. Replace keys daily: a stolen key decrypts \
                 recorded TLS 1.2 sessions. Without files, random keys are replaced every 12 hours. \
                 Other users must not be able to read the files.",
            ),
        row(Boost, Tls, "redirect-https", ValueType::Switch, "off")
            .summary("Redirect requests on plain listeners of the service to https://")
            .detail(
                "GET and HEAD get 301, which every client follows; other methods get 308, which \
                 keeps the method. The URL has the port of the tls:// listener: 443, if one has \
                 it. A request that a trusted peer received over https is not redirected.",
            ),
        row(Boost, Tls, "hsts", ValueType::DurationOrOff, "off")
            .summary("Send Strict-Transport-Security with this max-age in responses over TLS")
            .detail(
                "It replaces the field of the origin. 0s makes browsers forget an earlier value.",
            ),
        row(
            Service,
            Tls,
            "client-certificate",
            ValueType::Keyword(&["off", "optional", "required"]),
            "off",
        )
        .summary("Request certificates from clients")
        .detail(
            "optional: a client may present none. required: without one, the handshake fails. One \
             that is not valid always fails it. A reverse proxy sends origins the certificate in \
             Client-Cert and its intermediates in Client-Cert-Chain (RFC 9440); these fields of \
             clients are always removed. No session is resumed.",
        ),
        row(Service, Tls, "client-ca", ValueType::File, "(none)")
            .repeatable(64)
            .not_empty()
            .summary("PEM file with the authorities that certificates of clients are verified by"),
        row(Service, Tls, "client-crl", ValueType::File, "(none)")
            .repeatable(64)
            .not_empty()
            .summary("PEM file with lists of revoked certificates (CRL) of clients")
            .detail(
                "Then each certificate of a client's chain but the root needs a list of its \
                 issuer that has not expired. A changed file is read again.",
            ),
        row(Boost, Tls, "client-certificate-name", ValueType::DomainPattern, "(all)")
            .repeatable(256)
            .not_empty()
            .summary("Request certificates only from clients that ask for this name (SNI)")
            .detail(
                "A request whose Host selects another setting than the handshake used gets 421.",
            ),
        row(Service, Tls, "server-name", ValueType::ServerName, "(none)")
            .repeatable(100)
            .not_empty()
            .summary("Name of the certificate that acme orders; one certificate has all names"),
        row(Service, Tls, "acme", ValueType::MailAddress, "(none)")
            .summary("Order the certificate of tls:// by ACME, with this mail address")
            .detail(
                "With it you agree to the terms of the authority. The certificate is renewed in \
                 time. Until the first one has arrived, handshakes fail.",
            ),
        row(
            Service,
            Tls,
            "acme-directory",
            ValueType::HttpsUrl,
            "https://acme-v02.api.letsencrypt.org/directory",
        )
        .summary("Directory of the ACME authority"),
        row(Service, Tls, "acme-ca", ValueType::File, "(those of the system)")
            .summary("PEM file with the authorities that acme-directory is verified by"),
        row(
            Service,
            Tls,
            "acme-dir",
            ValueType::Folder,
            "($STATE_DIRECTORY/acme if set, otherwise /var/lib/millrace/acme)",
        )
        .summary("Directory of account key, certificates and orders")
        .detail("It is created if it is missing. Only one process at a time orders."),
        row(
            Service,
            Tls,
            "acme-http",
            ValueType::SocketAddress,
            "(port 80 of the first tls:// address)",
        )
        .summary("Address that serves the challenge http-01 and redirects to https; or off")
        .detail("If it is in use, only the challenge tls-alpn-01 remains, on the tls:// address."),
        row(Service, Tls, "acme-profile", ValueType::ServiceName, "(chosen by the authority)")
            .summary("Profile of the certificate, such as shortlived"),
        row(Service, Tls, "acme-eab", ValueType::File, "(none)")
            .summary("File with key identifier and HMAC key of an external account")
            .detail(
                "Two words as the authority gives them, the key in Base64url. Other users must \
                 not be able to read the file.",
            ),
        row(Route, Origins, "origins", ValueType::Origin, "(none; required without a folder)")
            .flag("origin")
            .repeatable(256)
            .not_empty()
            .summary("Pass requests to this web server; several share the load")
            .detail(
                "On the command line, commas may separate several servers. An origin may be listed \
                 several times: with round-robin, one that is listed n times gets n parts of the \
                 requests. This is its weight. For a canary that gets a quarter, list the old \
                 server three times and the new one once. Cache hits reach no origin, so shares of \
                 all requests need cache off. No client is bound to one origin.",
            ),
        row(Route, Origins, "fastcgi", ValueType::FastCgi, "(none)")
            .repeatable(256)
            .not_empty()
            .summary("Pass requests to the program of this FastCGI server")
            .detail(
                "With a folder, files with one of the extensions are scripts that it runs, as \
                 php-fpm does, and the others are sent. Without one, a single application responds \
                 to all paths: SCRIPT_NAME is the path of the route, PATH_INFO the rest. Not \
                 together with origins.",
            ),
        row(Route, Origins, "program", ValueType::ProgramSocket, "(none)")
            .summary("Pass requests to a program that hands over its responses without a copy")
            .detail(
                "The program is written with libiolite (iolite_program(7)) and listens on this \
                 Unix socket. It gets the variables of FastCGI: SCRIPT_NAME is the path of the \
                 route, PATH_INFO the rest. Each worker has one connection to it, which carries \
                 all requests. Request bodies longer than upload-buffer get a 413 response. \
                 Responses are sent from the memory of the program, and never stored in the \
                 cache. Not together with folder, origins, fastcgi and cgi.",
            ),
        row(
            Route,
            Origins,
            "upload-buffer",
            ValueType::Size { least: 0, most: 1 << 30 },
            "1M",
        )
        .summary("Receive request bodies of up to this size before a program gets them")
        .detail(
            "So no program waits for a slow client. A longer body is received into a file without \
             a name in the folder of a disk, up to the limit upload_file_bytes. Without a disk, it \
             is sent while it arrives; if it is chunked, the client gets a 413 response.",
        ),
        row(
            Route,
            Origins,
            "balance",
            ValueType::Keyword(&["round-robin", "least-outstanding"]),
            "round-robin",
        )
        .summary("How to choose among several origins")
        .detail(
            "round-robin uses them in turn, each as often as it is listed. least-outstanding uses \
             the origin with the fewest requests in progress, and several such origins in turn. \
             Each worker counts only its own requests.",
        ),
        row(Route, Origins, "host-header", ValueType::Keyword(&["client", "origin"]), "client")
            .summary("Which Host header field the origin receives")
            .detail(
                "client: the one that the client sent. origin: the name and port of the origin as \
                 configured.",
            ),
        row(Route, Origins, "host", ValueType::HostPattern, "(any)")
            .only_in_files()
            .summary("Match requests for this host")
            .detail("A request uses the first route that matches it."),
        row(Route, Origins, "path", ValueType::PathPrefix, "/")
            .only_in_files()
            .summary("Match requests whose path begins with this prefix")
            .detail(
                "The path is compared in normal form: escapes of unreserved characters (RFC 3986 \
                 section 2.3) are decoded, slashes are merged, and . and .. segments are removed.",
            ),
        row(Boost, Origins, "path-strict", ValueType::Switch, "on")
            .only_in_files()
            .summary("Refuse paths that origins may interpret as the path of another route")
            .detail(
                "Applies if a route has a path other than /. Three kinds of paths are refused with \
                 400. First, a path that an origin could interpret as the path of another route, \
                 because it may decode escapes once or twice, merge slashes, remove . and .. \
                 segments, or cut at a semicolon. Second, a path with %00 or with an encoded . or \
                 .. segment. Third, a path with a . or .. segment and also %2f, %5c or a \
                 semicolon.",
            ),
        row(
            Route,
            Origins,
            "path-forward",
            ValueType::Keyword(&["as-sent", "normalised"]),
            "as-sent",
        )
        .summary("Which form of the path the origin receives")
        .detail(
            "as-sent: as the client sent it. normalised: in the normal form by which the route was \
             selected. The cache key contains the same form.",
        ),
        row(Route, Origins, "pass-fields", ValueType::PassedField, "(none)")
            .repeatable(32)
            .summary("Pass on this request header field from untrusted peers too")
            .detail(
                "By default a reverse proxy removes the fields by which an untrusted client could \
                 describe itself or its request to the origin; see trust. A field that is passed \
                 on is part of the cache key.",
            ),
        row(Route, Origins, "eject-on-errors", ValueType::Switch, "off")
            .summary("Count 502, 503 and 504 responses as failures of the origin")
            .detail(
                "They count as if no response had arrived; see the limit eject_failures. They are \
                 still passed on to the client.",
            ),
        row(
            Route,
            Origins,
            "retry-on",
            ValueType::Keyword(&["malformed", "502", "503", "504", "off"]),
            "malformed",
        )
        .repeatable(4)
        .summary("Retry at another origin if the response is malformed or has this status")
        .detail(
            "Applies to idempotent requests without a body. The values replace the default. The \
             limits retries and retry_percent bound the retries; the response of the last origin \
             is passed on. Requests are retried after failed connections in any case.",
        ),
        row(Route, Origins, "check", ValueType::CheckPath, "off")
            .summary("Check the health of each origin by requesting this path")
            .detail(
                "Each origin is checked every check_interval_ms. An origin that fails the check is \
                 not used while another origin of the route passes it. An origin that was ejected \
                 because requests of clients failed also waits for eject_ms, even if it passes. The \
                 request is a GET with User-Agent millrace-check. Its Host is the host of the route. \
                 If the route has no host or a wildcard, or host-header is origin, Host is the name \
                 and port of the origin (localhost for a Unix socket).",
            ),
        row(Route, Origins, "check-status", ValueType::Statuses, "200-399")
            .summary("Which response statuses pass a health check"),
        row(Route, Origins, "send-proxy", ValueType::Keyword(&["off", "v1", "v2"]), "off")
            .summary("Begin each connection to an origin with a PROXY protocol header")
            .detail(
                "v1 is text, v2 is binary. The header names the client and the address to which \
                 the client connected. If proxy-protocol is set, both are those of the received \
                 header. Such a connection serves no other client. Health checks send a header \
                 without addresses.",
            ),
        row(
            Route,
            Origins,
            "origin-pipelining",
            ValueType::NumberOrOff { least: 2, most: 16 },
            "off",
        )
        .summary("Send up to N requests on an origin connection before their responses")
        .detail(
            "An origin that sends a response too many, or leaves one out, gives a client the \
             response to another client's request. So each origin is tested first, with requests \
             for the path of check, or for /. The first wrong response ends pipelining to an \
             origin until the process ends. A request is sent behind others only if all \
             connections are in use and the limit origin_connections is reached. Only GET and HEAD \
             without a body are sent so. See also the limit pipeline_wait_ms.",
        ),
        row(Route, Origins, "sendfile-path", ValueType::Folder, "(none)")
            .summary("Send files below this directory that a response of the origin names")
            .detail(
                "A response with status 200 names a file by X-Sendfile, with its absolute path, or \
                 by X-Accel-Redirect, with the path of a route whose directory is this one or below \
                 it; such a route is usually internal. Escapes (%20) are decoded. The client gets \
                 the file with the fields of that response, except those about its body. Ranges \
                 and conditions apply to the file. Hidden files and programs are never sent. Both \
                 fields are removed from all responses, also without this option.",
            ),
        row(Route, Origins, "origin-verify", ValueType::Switch, "on")
            .summary("Verify the certificates of https:// origins")
            .detail(
                "off accepts every certificate, so that an attacker in the network can read and \
                 change all traffic.",
            ),
        row(Route, Origins, "origin-ca", ValueType::File, "(the authorities of the system)")
            .summary("PEM file with the authorities that certificates of origins are verified by")
            .detail("It may also list certificates of origins, such as self-signed ones."),
        row(Route, Origins, "origin-name", ValueType::HostName, "(the host of the origin)")
            .summary("Name that the certificates of https:// origins have to be valid for")
            .detail("The origin receives it as SNI."),
        row(Route, Origins, "origin-certificate", ValueType::File, "(none)")
            .summary("PEM file with the certificate chain that is sent to https:// origins")
            .detail("It needs origin-key."),
        row(Route, Origins, "origin-key", ValueType::File, "(none)")
            .summary("PEM file with the private key of origin-certificate"),
        row(Forward, Targets, "fetch-https", ValueType::Switch, "off")
            .summary("Fetch https:// targets over TLS for clients that request them like http://")
            .detail(
                "The client then trusts the proxy to verify the certificate, which must be valid \
                 for the host of the target. Responses are cached. Browsers and most programs use \
                 CONNECT for https:// instead, which needs no option.",
            ),
        row(Forward, Targets, "fetch-ca", ValueType::File, "(the authorities of the system)")
            .summary("PEM file with the authorities that fetch-https verifies certificates by"),
        row(Service, Access, "allow-client", ValueType::Cidr, "(every client)")
            .repeatable(1024)
            .not_empty()
            .summary("Serve only clients with these addresses")
            .detail(
                "A forward proxy that other machines can reach does not start without this option.",
            ),
        row(Service, Access, "deny-client", ValueType::Cidr, "(none)")
            .repeatable(1024)
            .summary("Never serve clients with these addresses; overrides allow-client"),
        row(
            Forward,
            Access,
            "auth-file",
            ValueType::File,
            "(none; only addresses decide who may use the proxy)",
        )
        .summary("Serve only the users in this file")
        .detail(
            "Clients have to send a user name and password (Basic) or a token (Bearer). Each user \
             has a line NAME:HASH, with a hash written by htpasswd -B or openssl passwd -6, or \
             NAME:token:SHA256. Only the owner and the group of the file may have write access.",
        ),
        row(Forward, Access, "auth-realm", ValueType::Realm, "millrace")
            .summary("Realm that browsers show when they prompt for a password"),
        row(
            Forward,
            Targets,
            "allow-private",
            ValueType::Switch,
            "(on if only this machine can reach the proxy, otherwise off)",
        )
        .summary("Let clients reach loopback, private and other special addresses")
        .detail(
            "Addresses of cloud metadata services (link-local addresses, fd00:ec2::/32, \
             fd00:42::42 and a few others) always need allow-target.",
        ),
        row(Forward, Targets, "allow-target", ValueType::Cidr, "(none)")
            .repeatable(1024)
            .summary("Let clients reach these addresses; overrides allow-private"),
        row(Forward, Targets, "deny-target", ValueType::Cidr, "(none)")
            .repeatable(1024)
            .summary("Never let clients reach these addresses; overrides allow-target"),
        row(
            Forward,
            Targets,
            "allow-port",
            ValueType::Port,
            "(all if only this machine can reach the proxy, otherwise none)",
        )
        .repeatable(1024)
        .summary("Let clients reach this port in addition to 80, 443 and 1024 to 65535")
        .detail(
            "The list adds to these ports and does not replace them. To allow fewer, deny ports one \
             by one with deny-port; no option denies a range. Addresses of allow-target may be \
             reached at all ports.",
        ),
        row(
            Forward,
            Targets,
            "deny-port",
            ValueType::Number { least: 1, most: 65535 },
            "(none)",
        )
        .repeatable(1024)
        .summary("Never let clients reach this port; overrides allow-port and allow-target")
        .detail("Each value is one port; a range is not possible."),
        row(Forward, Targets, "allow-domain", ValueType::DomainPattern, "(every name)")
            .repeatable(DOMAINS_MAX)
            .not_empty()
            .summary("Let clients reach only these host names")
            .detail(
                "Targets given as addresses are then denied, except those of allow-target. The \
                 addresses of an allowed name still have to pass the other rules. A CONNECT tunnel \
                 whose TLS ClientHello asks for another name (SNI) that is not allowed, offers \
                 early data, or cannot be read, is closed.",
            ),
        row(Forward, Targets, "deny-domain", ValueType::DomainPattern, "(none)")
            .repeatable(DOMAINS_MAX)
            .summary("Never let clients reach these host names; overrides allow-domain")
            .detail(
                "The search list of resolv.conf(5) is then not applied to any name. A CONNECT \
                 tunnel whose TLS ClientHello asks for a denied name (SNI), offers early data, or \
                 cannot be read, is closed.",
            ),
        row(Forward, Targets, "sni-must-match", ValueType::Switch, "off")
            .summary("Let clients open CONNECT tunnels only for TLS to the requested host name")
            .detail(
                "A tunnel is closed if its first bytes are no TLS ClientHello, or if the \
                 ClientHello offers early data, or asks for no name (SNI) or for another name than \
                 CONNECT; with an encrypted ClientHello (ECH), its outer name counts. A CONNECT to \
                 an address never matches.",
            ),
        row(Service, Access, "trust", ValueType::Cidr, "(none)")
            .repeatable(1024)
            .summary("Trust forwarding header fields and PROXY headers from these peers")
            .detail(
                "Forwarded, X-Forwarded-* and PROXY headers are believed only if they come from \
                 these addresses. A reverse proxy sends Forwarded, X-Forwarded-For, \
                 X-Forwarded-Proto and X-Forwarded-Host to its origins: it appends to the values \
                 of trusted peers and replaces those of all others. Only trusted peers may send \
                 other fields that describe a request, such as X-Forwarded-Prefix and \
                 X-Original-URL; these are passed on and are part of the cache key. If a PROXY \
                 header names a client, the address of that client decides whether its fields are \
                 trusted. See also pass-fields.",
            ),
        row(Service, Access, "proxy-protocol", ValueType::Flag, "false")
            .summary("Expect a PROXY protocol header on each connection; needs trust")
            .detail(
                "Versions 1 and 2 are accepted. A connection without a valid header, or from a peer \
                 that is not in trust, is closed without a response and without a record in the \
                 access log. The metric millrace_connections_refused_total counts it.",
            ),
        row(Service, Connections, "proxy-status", ValueType::Switch, "off")
            .summary("Add Proxy-Status (RFC 9209) to responses that are passed on")
            .detail("Responses that millrace makes in place of an origin's always have this field."),
        row(Service, Connections, "congestion", ValueType::Congestion, "system")
            .summary("TCP congestion control of connections from clients")
            .detail(
                "system: the setting of the kernel. auto: cubic for peers with a loopback, private \
                 or link-local address, the setting of the kernel for all others; an algorithm \
                 that paces, such as bbr, costs CPU time for such peers and gains nothing. Any \
                 other value is the name of an algorithm.",
            ),
        row(Service, Connections, "origin-congestion", ValueType::Congestion, "system")
            .summary("TCP congestion control of connections to origins")
            .detail("The values are those of congestion."),
        row(Cache, Caching, "cache", ValueType::Switch, "on")
            .summary("Store responses and reuse them")
            .detail(
                "The rules are those of RFC 9111 for a shared cache. off: requests bypass the \
                 cache.",
            ),
        row(Cache, Caching, "cache-ttl", ValueType::CacheLifetime, "origin")
            .repeatable(32)
            .summary("How long responses stay fresh")
            .detail(
                "origin: use the lifetime that the response sets (by cache-target, Cache-Control \
                 or Expires), otherwise cache-heuristic. default TIME: use TIME if the response \
                 sets no lifetime. override TIME: use TIME even if the response sets one; no-store \
                 and no-cache still apply. A rule without a status applies to the statuses that \
                 are cacheable by default: 200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414 \
                 and 501. Responses with 400, 401 and 429 are stored only if a rule names their \
                 status or a range with it.",
            ),
        row(Cache, Caching, "cache-ttl-max", ValueType::Duration, "3650d")
            .summary("Longest lifetime of a response")
            .detail("Does not apply to cache-ttl override."),
        row(
            Cache,
            Caching,
            "cache-heuristic",
            ValueType::Number { least: 0, most: 100 },
            "10",
        )
        .summary("Lifetime in percent of the time since Last-Modified")
        .detail(
            "Applies to responses that set no lifetime (RFC 9111 section 4.2.2). 0: such a \
             response is validated before each reuse.",
        ),
        row(Cache, Caching, "cache-heuristic-max", ValueType::Duration, "1d")
            .summary("Longest lifetime by cache-heuristic"),
        row(Cache, Caching, "cache-stale-if-error", ValueType::Duration, "0s")
            .summary("How long to use a stale response if the origin fails")
            .detail(
                "An origin fails if it cannot be reached or responds with 500, 502, 503 or 504. \
                 Applies to responses that neither set such a time (RFC 5861) nor forbid stale \
                 reuse.",
            ),
        row(Cache, Caching, "cache-stale-while-revalidate", ValueType::Duration, "0s")
            .summary("How long to use a stale response while it is validated in the background")
            .detail(
                "Applies to responses that neither set such a time (RFC 5861) nor forbid stale \
                 reuse.",
            ),
        row(
            Cache,
            Caching,
            "cache-set-cookie",
            ValueType::Keyword(&["explicit", "shared", "never"]),
            "never",
        )
        .summary("Which responses with Set-Cookie to store")
        .detail(
            "A stored response is sent to other clients with its Set-Cookie. never: store none. \
             explicit: store responses that set a lifetime; the cookies of a validation (304) are \
             stored too. shared: store responses with directives for shared caches (public, \
             s-maxage, a field of cache-target).",
        ),
        row(Cache, Caching, "cache-request-directives", ValueType::Switch, "on")
            .summary("Apply Cache-Control and Pragma of requests (RFC 9111 section 5.2.1)")
            .detail("With such a directive a client can, for example, force a validation."),
        row(Cache, Caching, "cache-target", ValueType::FieldName, "CDN-Cache-Control")
            .repeatable(8)
            .summary("Response header field with directives for this cache (RFC 9213)")
            .detail(
                "The first of these fields that a response has replaces its Cache-Control and \
                 Expires.",
            ),
        row(
            Cache,
            Caching,
            "cache-key",
            ValueType::FieldOrCookie,
            "(only the URL and the fields in which trusted peers describe a request; see trust)",
        )
        .repeatable(64)
        .summary("Add this request header field or cookie to the cache key")
        .detail(
            "Responses to requests that differ in it are stored apart, even if the origin sends no \
             Vary. The value of a field is the one that the origin receives.",
        ),
        row(Cache, Caching, "cache-ignore-query", ValueType::QueryParameter, "(none)")
            .repeatable(256)
            .summary("Leave this query parameter out of the cache key")
            .detail(
                "URLs that differ only in this parameter share a stored response. The origin still \
                 receives the parameter.",
            ),
        row(Cache, Caching, "share-schemes", ValueType::Switch, "off")
            .summary("Store one response for http:// and https://")
            .detail(
                "For origins that respond alike to both. Such a response is listed and purged by \
                 its http:// URL. Requests with a port that is not the default share only if both \
                 schemes have the same port.",
            ),
        row(Cache, Caching, "cache-bypass", ValueType::FieldOrCookie, "(none)")
            .repeatable(64)
            .summary("Bypass the cache for requests with this header field or cookie")
            .detail("Such a request gets no stored response, and its response is not stored."),
        row(Cache, Caching, "cache-finish", ValueType::Switch, "on")
            .summary("Finish fetching a response after its client has left")
            .detail(
                "The response is received to its end and stored. A partial response (206) is \
                 received at most 64 KiB ahead of its readers, and only while it has readers.",
            ),
        row(Cache, Caching, "cache-status", ValueType::Switch, "on")
            .summary("Add Cache-Status (RFC 9211) to responses"),
    ];
}
