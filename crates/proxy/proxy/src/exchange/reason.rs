//! Why millrace answers a request itself, or ends a connection before its time: each reason with
//! its status, its sentence for the client, and its word for the log.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $status:literal $word:literal $text:literal;)*) => {
        /// A reason. The same value goes into the response's body, the access log and the counters.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The status of the response that says so; 0 where the client gets no response.
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The word in the log.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// One sentence for the person who reads the response.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

reasons! {
    // The client's fault, seen in its request header.
    /// RFC 9112 sections 2 to 5: the header breaks the grammar.
    MalformedHead = 400 "malformed-head" "The request head is malformed.";
    /// RFC 9112 section 6.3: the body's length can be read in two ways, or in none.
    MalformedFraming = 400 "malformed-framing"
        "The length of the request body is not stated in one clear way.";
    /// RFC 9112 section 7.1: a chunk breaks the grammar.
    MalformedBody = 400 "malformed-body" "The chunked request body is malformed.";
    /// Origins may read the path as one of another route, and `path-strict` is on.
    AmbiguousPath = 400 "ambiguous-path"
        "The path of the request can be read as the path of another route.";
    /// RFC 9112 sections 3.2 and 3.3: no destination can be read from target and Host.
    MalformedTarget = 400 "malformed-target" "The request target or Host field is malformed.";
    /// The connection does not begin with the PROXY protocol header that its listener asks for.
    /// Nothing is answered: what came may not even be HTTP.
    MalformedProxyHeader = 0 "malformed-proxy-header"
        "The PROXY protocol header is missing or malformed.";
    /// The target is longer than `target_bytes`.
    TargetTooLong = 414 "target-too-long" "The request target is too long.";
    /// The head is longer than `request_head_bytes`, or has more than `fields` fields.
    HeadTooLarge = 431 "head-too-large" "The request head is too large.";
    /// RFC 9112 section 6.1: a transfer coding that is not known.
    CodingUnknown = 501 "coding-unknown" "The request uses a transfer coding other than chunked.";
    /// RFC 9110 section 15.6.6: a major version other than 1.
    VersionUnsupported = 505 "version-unsupported" "Only HTTP/1.0 and HTTP/1.1 are spoken here.";
    /// RFC 9110 section 10.1.1: an expectation other than 100-continue.
    ExpectationUnknown = 417 "expectation-unknown"
        "The only expectation known here is 100-continue.";
    /// RFC 9112 section 8: the client ended its stream before the body was whole.
    BodyCut = 400 "body-cut" "The request body ended early.";
    /// The head did not end within `head_ms`.
    HeadTimedOut = 408 "head-timed-out" "The request head took too long to arrive.";
    /// The body stood still for `body_ms`, or was slower than `rate_bytes_per_second`.
    BodyTimedOut = 408 "body-timed-out" "The request body took too long to arrive.";

    // What the request asks for is not done here.
    /// The client's address is not among those that may use this listener.
    ClientDenied = 403 "client-denied" "Your address may not use this proxy.";
    /// RFC 9110 section 15.5.8: the client has not said who it is.
    AuthRequired = 407 "auth-required"
        "This proxy needs a user name and password, or a token: send Proxy-Authorization.";
    /// The password or token is not right, or there is no such user: which, is not told.
    AuthFailed = 407 "auth-failed" "The user name and password, or the token, are not known here.";
    /// The target's address is outside what this listener may reach.
    TargetDenied = 403 "target-denied" "This proxy may not connect to that address.";
    /// The target's port is denied, or not among those that may be reached.
    PortDenied = 403 "port-denied" "This proxy may not connect to that port.";
    /// The target's name is on the list of denied names.
    DomainDenied = 403 "domain-denied" "This proxy may not connect to that host name.";
    /// There is a list of allowed names, and the target is not on it.
    DomainNotAllowed = 403 "domain-not-allowed"
        "This proxy may connect to certain host names only, and not to that host.";
    /// A request in origin-form reached a forward proxy: a web browser's, not a proxy client's.
    NotAProxyRequest = 400 "not-a-proxy-request"
        "This is a proxy: it needs an absolute http:// URL or CONNECT.";
    /// An absolute target whose scheme is not http.
    SchemeUnsupported = 400 "scheme-unsupported" "Only http:// URLs and CONNECT are served here.";
    /// CONNECT came in at a booster.
    ConnectRefused = 405 "connect-refused" "CONNECT is not served here.";
    /// No route matches host and path.
    NoRoute = 404 "no-route" "Nothing is configured for this host and path.";
    /// RFC 9111 section 5.2.1.7: the client wants what is stored, and nothing is.
    OnlyIfCached = 504 "only-if-cached"
        "The request asks for a stored answer only (only-if-cached), and none is stored.";
    /// RFC 9110 section 7.6.3: the request has been here before.
    Loop = 508 "loop" "The request has already passed through this proxy.";

    // The origin's fault.
    /// The name has no address.
    NameUnknown = 502 "name-unknown" "The origin's name has no address.";
    /// The name servers failed or contradict themselves.
    NameFailed = 502 "name-failed" "The origin's name could not be looked up.";
    /// No name server answered within `name_ms`.
    NameTimedOut = 504 "name-timed-out" "The lookup of the origin's name took too long.";
    /// No address accepted the connection.
    ConnectFailed = 502 "connect-failed" "The origin refused the connection.";
    /// The network does not lead to any of its addresses.
    OriginUnreachable = 502 "origin-unreachable" "The network does not lead to the origin.";
    /// No address answered within `connect_ms`.
    ConnectTimedOut = 504 "connect-timed-out" "The connection to the origin took too long.";
    /// The origin closed or reset its connection before it answered.
    OriginClosed = 502 "origin-closed" "The origin closed the connection before it answered.";
    /// The response header did not come within `first_byte_ms`.
    OriginTimedOut = 504 "origin-timed-out" "The origin took too long to answer.";
    /// The response header breaks the grammar or is too large.
    MalformedResponse = 502 "malformed-response" "The origin's answer is malformed.";
    /// The length of the response's body can be read in two ways.
    MalformedResponseFraming = 502 "malformed-response-framing"
        "The length of the origin's answer is not stated in one clear way.";
    /// The first chunk of the response breaks the grammar, and nothing of it was delivered.
    MalformedResponseBody = 502 "malformed-response-body" "The origin's chunked answer is malformed.";
    /// The response's body ended early, or was no longer held, before any of the response was sent.
    ResponseIncomplete = 502 "response-incomplete" "The origin's answer did not arrive whole.";
    /// 101 without a matching Upgrade request (RFC 9110 section 15.2.2).
    UpgradeUnrequested = 502 "upgrade-unrequested"
        "The origin switched to a protocol that was not asked for.";
    /// More interim responses than a client should have to read.
    TooManyInterim = 502 "too-many-interim" "The origin sent too many interim answers.";

    /// It has as many connections, and requests waiting for one, as it may have; or the wait was
    /// longer than `queue_ms`.
    OriginBusy = 503 "origin-busy" "The origin has all the requests it can take; try again soon.";

    // Ours.
    /// Descriptors, kernel memory or a table ran out.
    Overloaded = 503 "overloaded" "This proxy is out of resources; try again soon.";
    /// Too many passwords wait to be compared, of all clients or of this one; or it took too long.
    AuthBusy = 503 "auth-busy" "Too many passwords wait to be checked; try again soon.";

    // Too late for a response: it has begun, or nobody listens. The connection tells.
    /// The client closed or reset its connection.
    ClientClosed = 0 "client-closed" "The client closed the connection.";
    /// The client took nothing for `send_ms`, or took it too slowly.
    ClientTimedOut = 0 "client-timed-out" "The client stopped taking the answer.";
    /// Room ran short, and this client had stood still longest: it took or sent nothing.
    Shed = 0 "shed" "This proxy was out of room, and this client stood still.";
    /// The response's body ended early or broke the grammar.
    ResponseCut = 0 "response-cut" "The origin cut its answer short.";
    /// The answer's body stood still for `response_ms`.
    ResponseTimedOut = 0 "response-timed-out" "The origin stopped in the middle of its answer.";
    /// A tunnel stood still for `tunnel_idle_ms`.
    TunnelIdle = 0 "tunnel-idle" "Nothing moved in the tunnel.";
    /// The process ends, and the time for draining is over.
    Draining = 0 "draining" "This proxy is being stopped.";
}

impl Reason {
    /// Whether the client's connection cannot go on: where its next request begins is unknown, or
    /// what it sends is not to be trusted.
    pub const fn closes(self) -> bool {
        use Reason::*;
        matches!(
            self,
            MalformedHead
                | MalformedFraming
                | MalformedBody
                | MalformedTarget
                | BodyCut
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

    /// Whose failure it is.
    pub(crate) const fn failure(self) -> Failure {
        use Reason::*;
        match self {
            ClientClosed | ClientTimedOut | Shed | TunnelIdle | Draining => Failure::Client,
            NameUnknown | NameFailed | NameTimedOut | ConnectFailed | OriginUnreachable
            | ConnectTimedOut | TargetDenied | PortDenied => Failure::Connect,
            OriginClosed => Failure::NoResponse,
            OriginTimedOut
            | MalformedResponse
            | MalformedResponseFraming
            | UpgradeUnrequested
            | TooManyInterim => Failure::Header,
            MalformedResponseBody | ResponseIncomplete | ResponseCut | ResponseTimedOut => {
                Failure::Body
            }
            Overloaded | OriginBusy | AuthBusy => Failure::Proxy,
            MalformedHead | MalformedFraming | MalformedBody | AmbiguousPath | MalformedTarget
            | MalformedProxyHeader | TargetTooLong | HeadTooLarge | CodingUnknown
            | VersionUnsupported | ExpectationUnknown | BodyCut | HeadTimedOut | BodyTimedOut
            | ClientDenied | AuthRequired | AuthFailed | DomainDenied | DomainNotAllowed
            | NotAProxyRequest | SchemeUnsupported | ConnectRefused | NoRoute | OnlyIfCached
            | Loop => Failure::Request,
        }
    }

    /// Whether the header of the origin's response is no HTTP, or not what was asked for.
    pub(crate) const fn is_malformed_response(self) -> bool {
        use Reason::*;
        matches!(self, MalformedResponse | MalformedResponseFraming | UpgradeUnrequested)
    }

    /// The error type of Proxy-Status that says the same (RFC 9209 section 2.3).
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

/// What failed, by whose fault. Follows from the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The request, or what it requests, is refused: it is malformed, slow or cut, or not allowed.
    Request,
    /// The client's connection broke, was too slow, or had to make room.
    Client,
    /// No connection to an origin could be opened.
    Connect,
    /// The origin ended its connection without a response.
    NoResponse,
    /// The response header is wrong or late.
    Header,
    /// The response body ends early, breaks its framing, or stops.
    Body,
    /// Millrace itself has no room.
    Proxy,
}

/// The reason phrase of a status that millrace makes itself.
pub const fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        508 => "Loop Detected",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_an_error_type_that_is_a_token() {
        // RFC 8941 section 3.3.4, as far as the registered types use it.
        let is_token =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for reason in Reason::ALL {
            assert!(!reason.error_type().is_empty() && is_token(reason.error_type()), "{reason:?}");
            // It stands in quotes: RFC 8941 section 3.3.3.
            assert!(!reason.word().contains(['"', '\\']));
        }
        assert_eq!(Reason::ConnectFailed.error_type(), "connection_refused");
        assert_eq!(Reason::MalformedHead.error_type(), "http_request_error");
        assert_eq!(Reason::ClientDenied.error_type(), "http_request_denied");
        assert_eq!(Reason::Overloaded.error_type(), "proxy_internal_error");
    }

    #[test]
    fn every_status_of_the_table_has_a_phrase_and_every_word_is_used_once() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert!(reason.status() == 0 || !phrase(reason.status()).is_empty(), "{reason:?}");
            assert!(Reason::ALL[..index].iter().all(|other| other.word() != reason.word()));
        }
    }
}
