//! The reasons for which millrace responds itself or ends a connection early. Each has a status, a
//! sentence for the client, and a word for the log.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $status:literal $word:literal $text:literal;)*) => {
        /// A reason. The same value is used in the response body, the access log and the counters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the status of the response. 0 if the client gets no response.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Returns the word for the access log.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// Returns the sentence for the reader of the response.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    // Errors of the client, detected in its request.
    /// The header breaks the grammar (RFC 9112 sections 2 to 5).
    MalformedHead = 400 "malformed-head" "The request header is malformed.";
    /// The length of the body can be read in two ways, or in none (RFC 9112 section 6.3).
    MalformedFraming = 400 "malformed-framing"
        "The length of the request body is ambiguous or missing.";
    /// A chunk breaks the grammar (RFC 9112 section 7.1).
    MalformedBody = 400 "malformed-body" "The chunked request body is malformed.";
    /// Origins may read the path as that of another route, and `path-strict` is on.
    AmbiguousPath = 400 "ambiguous-path"
        "The path of the request can be read as the path of another route.";
    /// No destination can be read from the target and Host (RFC 9112 sections 3.2 and 3.3).
    MalformedTarget = 400 "malformed-target" "The request target or Host field is malformed.";
    /// The target is longer than `target_bytes`.
    TargetTooLong = 414 "target-too-long" "The request target is too long.";
    /// The header is longer than `request_head_bytes`, or has more than `fields` fields.
    HeadTooLarge = 431 "head-too-large" "The request header is too large.";
    /// The length of the body is unknown, it is for a program, and it is longer than
    /// `upload-buffer` or, with a disk, `upload_file_bytes`.
    BodyTooLong = 413 "body-too-long"
        "The chunked request body is too long; send it with a Content-Length.";
    /// The body is longer than `upload-buffer`, and for a program that gets only whole bodies.
    BodyTooLarge = 413 "body-too-large" "The request body is too large.";
    /// An unknown transfer coding (RFC 9112 section 6.1).
    CodingUnknown = 501 "coding-unknown" "The request uses a transfer coding other than chunked.";
    /// A major version other than 1 (RFC 9110 section 15.6.6).
    VersionUnsupported = 505 "version-unsupported" "Only HTTP/1.0 and HTTP/1.1 are supported.";
    /// An expectation other than 100-continue (RFC 9110 section 10.1.1).
    ExpectationUnknown = 417 "expectation-unknown"
        "The only supported expectation is 100-continue.";
    /// The client ended its stream before the body was whole (RFC 9112 section 8).
    BodyCut = 400 "body-cut" "The request body ended early.";
    /// The header was not complete within `head_ms`.
    HeadTimedOut = 408 "head-timed-out" "The request header took too long to arrive.";
    /// The body stalled for `body_ms`, or was slower than `rate_bytes_per_second`.
    BodyTimedOut = 408 "body-timed-out" "The request body took too long to arrive.";

    // Requests that this proxy does not serve.
    /// The client's address is not allowed to use this listener.
    ClientDenied = 403 "client-denied" "Your address may not use this proxy.";
    /// The client sent no credentials (RFC 9110 section 15.5.8).
    AuthRequired = 407 "auth-required"
        "This proxy requires a user name and password, or a token, in Proxy-Authorization.";
    /// The password or token is wrong, or the user does not exist. The client does not learn which.
    AuthFailed = 407 "auth-failed" "The user name and password, or the token, are not valid.";
    /// The target's address is denied by this listener.
    TargetDenied = 403 "target-denied" "This proxy may not connect to that address.";
    /// The target's port is denied, or is not an allowed one.
    PortDenied = 403 "port-denied" "This proxy may not connect to that port.";
    /// The target's name is in the list of denied names.
    DomainDenied = 403 "domain-denied" "This proxy may not connect to that host name.";
    /// There is a list of allowed names, and the target's name is not in it.
    DomainNotAllowed = 403 "domain-not-allowed"
        "This proxy may connect only to certain host names, and not to that one.";
    /// A request in origin-form reached a forward proxy. A web browser sent it, not a proxy client.
    NotAProxyRequest = 400 "not-a-proxy-request"
        "This is a proxy: send an absolute http:// URL or CONNECT.";
    /// An absolute target whose scheme is not http, nor https on a secured connection of a reverse
    /// proxy.
    SchemeUnsupported = 400 "scheme-unsupported"
        "This proxy serves http:// URLs, https:// URLs only with fetch-https, and CONNECT.";
    /// The request is for another server than the one of its connection (RFC 9110 sections 7.4 and
    /// 15.5.20).
    Misdirected = 421 "misdirected"
        "This connection does not serve the host or the scheme of the request; use another one.";
    /// CONNECT to a reverse proxy.
    ConnectRefused = 405 "connect-refused" "This server does not serve CONNECT.";
    /// No route matches host and path.
    NoRoute = 404 "no-route" "No route is configured for this host and path.";
    /// The folder of the route has no such file, or hides it.
    FileMissing = 404 "file-missing" "There is no such file.";
    /// The file cannot be opened: its permissions, its type or a link forbid it.
    FileForbidden = 403 "file-forbidden" "This file is not served.";
    /// The path cannot name a file.
    FileNameInvalid = 400 "file-name-invalid" "The path cannot name a file.";
    /// A file does not support the method.
    MethodNotAllowed = 405 "method-not-allowed" "Files are served for GET and HEAD only.";
    /// The file is not the one that the request is for (RFC 9110 section 13.1).
    PreconditionFailed = 412 "precondition-failed" "The file has changed.";
    /// The client requested a stored response only, and none is stored (RFC 9111 section 5.2.1.7).
    OnlyIfCached = 504 "only-if-cached"
        "The request asks for a stored response only (only-if-cached), and none is stored.";
    /// The request has passed this proxy before (RFC 9110 section 7.6.3).
    Loop = 508 "loop" "The request has already passed through this proxy.";

    // Errors of the origin.
    /// The name has no address.
    NameUnknown = 502 "name-unknown" "The origin's name has no address.";
    /// The name servers failed or contradict each other.
    NameFailed = 502 "name-failed" "The origin's name could not be looked up.";
    /// No name server responded within `name_ms`.
    NameTimedOut = 504 "name-timed-out" "The lookup of the origin's name took too long.";
    /// No address accepted the connection.
    ConnectFailed = 502 "connect-failed" "The origin refused the connection.";
    /// The network has no route to any of the addresses.
    OriginUnreachable = 502 "origin-unreachable" "The network has no route to the origin.";
    /// No address accepted the connection within `connect_ms`.
    ConnectTimedOut = 504 "connect-timed-out" "The connection to the origin took too long.";
    /// The TLS handshake with the origin failed.
    OriginTlsFailed = 502 "origin-tls-failed" "The TLS handshake with the origin failed.";
    /// The certificate of the origin is not valid, or the origin does not accept ours.
    OriginCertificateInvalid = 502 "origin-certificate-invalid"
        "The origin's certificate is not valid.";
    /// The origin closed or reset its connection before it responded.
    OriginClosed = 502 "origin-closed" "The origin closed the connection before it responded.";
    /// The response header did not arrive within `first_byte_ms`.
    OriginTimedOut = 504 "origin-timed-out" "The origin took too long to respond.";
    /// The response header breaks the grammar or is too large.
    MalformedResponse = 502 "malformed-response" "The origin's response is malformed.";
    /// The length of the response body can be read in two ways.
    MalformedResponseFraming = 502 "malformed-response-framing"
        "The length of the origin's response is ambiguous.";
    /// The first chunk of the response breaks the grammar, and nothing of the response was
    /// delivered.
    MalformedResponseBody = 502 "malformed-response-body"
        "The origin's chunked response is malformed.";
    /// The body ended early before any of the response was sent. Or the cache does not store the
    /// body, and discarded its beginning before the response could be sent.
    ResponseIncomplete = 502 "response-incomplete"
        "The origin's response did not arrive completely.";
    /// A 101 without a matching Upgrade request (RFC 9110 section 15.2.2).
    UpgradeUnrequested = 502 "upgrade-unrequested"
        "The origin switched to a protocol that was not requested.";
    /// More interim responses than a client should have to read.
    TooManyInterim = 502 "too-many-interim" "The origin sent too many interim responses.";

    /// The origin has as many connections and queued requests as it may have, or the request was
    /// queued for longer than `queue_ms`.
    OriginBusy = 503 "origin-busy"
        "The origin has reached its limit of connections; try again soon.";

    // Errors of millrace.
    /// Descriptors, kernel memory or slots of a table ran out.
    Overloaded = 503 "overloaded" "This proxy is out of resources; try again soon.";
    /// The file could not be read, or ended early.
    FileFailed = 500 "file-failed" "The file could not be read.";
    /// The file of a long request body could not be written or read.
    UploadFailed = 500 "upload-failed" "The request body could not be stored.";
    /// The disk for long request bodies has no space, or they have `upload_disk_bytes` together.
    UploadDiskFull = 507 "upload-disk-full" "There is no space for the request body.";
    /// The programs of this server have redirected the request more than ten times.
    TooManyRedirects = 500 "too-many-redirects"
        "The programs of this server have redirected the request too often.";
    /// No byte of the file was read from its disk within `response_ms`.
    FileTimedOut = 504 "file-timed-out" "The disk of the file took too long.";
    /// Too many passwords of this client or of all clients wait to be compared, or the comparison
    /// took too long.
    AuthBusy = 503 "auth-busy" "Too many passwords wait to be checked; try again soon.";

    // Too late for a response: it has begun, or the client has left. The end of the connection
    // shows the error.
    /// The client closed or reset its connection.
    ClientClosed = 0 "client-closed" "The client closed the connection.";
    /// The client took nothing for `send_ms`, or took it too slowly.
    ClientTimedOut = 0 "client-timed-out" "The client stopped receiving the response.";
    /// Capacity ran out, and this client was the one stalled for longest.
    Shed = 0 "shed" "This proxy ran out of capacity, and this client was stalled.";
    /// The response body ended early or broke the grammar.
    ResponseCut = 0 "response-cut" "The origin cut its response short.";
    /// The response body stalled for `response_ms`.
    ResponseTimedOut = 0 "response-timed-out" "The origin stalled in the middle of its response.";
    /// The ClientHello in the tunnel asks for a denied name.
    SniDenied = 0 "sni-denied" "The ClientHello in the tunnel asks for a denied host name.";
    /// There is a list of allowed names, and the ClientHello in the tunnel asks for another one.
    SniNotAllowed = 0 "sni-not-allowed"
        "The ClientHello in the tunnel asks for a host name that is not allowed.";
    /// The ClientHello in the tunnel asks for another name than CONNECT.
    SniMismatch = 0 "sni-mismatch"
        "The ClientHello in the tunnel asks for another host name than CONNECT.";
    /// The names have to match, and the tunnel began without a ClientHello or without a name.
    SniMissing = 0 "sni-missing" "The tunnel did not begin with a ClientHello that has a name.";
    /// The ClientHello in the tunnel is malformed, cut or too large, and its name decides.
    SniUnreadable = 0 "sni-unreadable" "The ClientHello in the tunnel cannot be read.";
    /// The ClientHello in the tunnel was not complete within `handshake_ms`, and its name decides.
    SniTimedOut = 0 "sni-timed-out" "The ClientHello in the tunnel took too long to arrive.";
    /// No byte moved in the tunnel for `tunnel_idle_ms`.
    TunnelIdle = 0 "tunnel-idle" "The tunnel was idle for too long.";
    /// The process ends, and the time for draining is over.
    Draining = 0 "draining" "This proxy is shutting down.";
}

impl Reason {
    /// Returns whether the client connection has to close: the beginning of its next request is
    /// unknown, the client is denied, or the proxy is out of resources.
    pub const fn closes(self) -> bool {
        use Reason::*;
        matches!(
            self,
            MalformedHead
                | MalformedFraming
                | MalformedBody
                | MalformedTarget
                | BodyCut
                | BodyTooLong
                | BodyTooLarge
                | TargetTooLong
                | HeadTooLarge
                | CodingUnknown
                | VersionUnsupported
                | HeadTimedOut
                | BodyTimedOut
                | ClientDenied
                | Overloaded
        ) || self.status() == 0
    }

    /// Returns what failed.
    pub(crate) const fn failure(self) -> Failure {
        use Reason::*;
        match self {
            ClientClosed | ClientTimedOut | Shed | TunnelIdle | Draining => Failure::Client,
            NameUnknown
            | NameFailed
            | NameTimedOut
            | ConnectFailed
            | OriginUnreachable
            | ConnectTimedOut
            | OriginTlsFailed
            | OriginCertificateInvalid
            | TargetDenied
            | PortDenied => Failure::Connect,
            OriginClosed => Failure::NoResponse,
            OriginTimedOut
            | MalformedResponse
            | MalformedResponseFraming
            | UpgradeUnrequested
            | TooManyInterim => Failure::Header,
            MalformedResponseBody | ResponseIncomplete | ResponseCut | ResponseTimedOut => {
                Failure::Body
            }
            FileFailed | FileTimedOut => Failure::File,
            Overloaded | OriginBusy | AuthBusy | TooManyRedirects | UploadFailed
            | UploadDiskFull => Failure::Proxy,
            MalformedHead | MalformedFraming | MalformedBody | AmbiguousPath | MalformedTarget
            | TargetTooLong | HeadTooLarge | BodyTooLong | BodyTooLarge | CodingUnknown
            | VersionUnsupported | ExpectationUnknown | BodyCut | HeadTimedOut | BodyTimedOut
            | ClientDenied | AuthRequired | AuthFailed | DomainDenied | DomainNotAllowed
            | NotAProxyRequest | SchemeUnsupported | Misdirected | ConnectRefused | NoRoute
            | FileMissing | FileForbidden | FileNameInvalid | MethodNotAllowed
            | PreconditionFailed | OnlyIfCached | Loop | SniDenied | SniNotAllowed
            | SniMismatch | SniMissing | SniUnreadable | SniTimedOut => Failure::Request,
        }
    }

    /// Returns whether a folder of this server refuses the request, not a proxy.
    pub(crate) const fn is_of_folder(self) -> bool {
        use Reason::*;
        matches!(
            self,
            FileMissing
                | FileForbidden
                | FileNameInvalid
                | MethodNotAllowed
                | PreconditionFailed
                | FileFailed
                | FileTimedOut
        )
    }

    /// Returns whether the header of the origin's response is malformed or does not fit the
    /// request.
    pub(crate) const fn is_malformed_response(self) -> bool {
        use Reason::*;
        matches!(self, MalformedResponse | MalformedResponseFraming | UpgradeUnrequested)
    }

    /// Returns the error type for Proxy-Status (RFC 9209 section 2.3).
    pub const fn error_type(self) -> &'static str {
        use Reason::*;
        match self {
            NameUnknown | NameFailed => "dns_error",
            NameTimedOut => "dns_timeout",
            NoRoute => "destination_not_found",
            TargetDenied => "destination_ip_prohibited",
            OriginUnreachable => "destination_ip_unroutable",
            ConnectFailed => "connection_refused",
            ConnectTimedOut => "connection_timeout",
            OriginTlsFailed => "tls_protocol_error",
            OriginCertificateInvalid => "tls_certificate_error",
            OriginClosed => "connection_terminated",
            OriginBusy => "connection_limit_reached",
            OriginTimedOut => "connection_read_timeout",
            MalformedResponseBody => "http_response_transfer_coding",
            ResponseIncomplete => "http_response_incomplete",
            MalformedResponse | MalformedResponseFraming | UpgradeUnrequested | TooManyInterim => {
                "http_protocol_error"
            }
            Loop => "proxy_loop_detected",
            _ => match self.status() {
                403 | 405 | 407 => "http_request_denied",
                400..=499 | 501 | 505 => "http_request_error",
                _ => "proxy_internal_error",
            },
        }
    }
}

/// The part of the exchange that failed. Determined by the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The request, or what it requests, is refused: it is malformed, slow or cut, or not allowed.
    Request,
    /// The client connection broke, was too slow, or was shed.
    Client,
    /// No connection to an origin could be opened.
    Connect,
    /// The origin ended its connection without a response.
    NoResponse,
    /// The response header is wrong or late.
    Header,
    /// The response body ends early, breaks its framing, or stalls.
    Body,
    /// The file that is the response cannot be read.
    File,
    /// Millrace itself has no capacity.
    Proxy,
}

/// Returns the reason phrase of a status that millrace makes itself.
pub const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        301 => "Moved Permanently",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_an_error_type_that_is_a_token() {
        // RFC 8941 section 3.3.4, restricted to the characters that the registered types use.
        let is_token =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for reason in Reason::ALL {
            assert!(!reason.error_type().is_empty() && is_token(reason.error_type()), "{reason:?}");
            // The word is written in quotes (RFC 8941 section 3.3.3).
            assert!(!reason.word().contains(['"', '\\']));
        }
        assert_eq!(Reason::ConnectFailed.error_type(), "connection_refused");
        assert_eq!(Reason::MalformedHead.error_type(), "http_request_error");
        assert_eq!(Reason::ClientDenied.error_type(), "http_request_denied");
        assert_eq!(Reason::Overloaded.error_type(), "proxy_internal_error");
    }

    #[test]
    fn every_status_has_a_phrase_and_every_word_is_unique() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert!(reason.status() == 0 || !phrase(reason.status()).is_empty(), "{reason:?}");
            assert!(Reason::ALL[..index].iter().all(|other| other.word() != reason.word()));
        }
    }
}
