//! Files that a response names instead of a body: `X-Sendfile` has the path of a file, and
//! `X-Accel-Redirect` that of a route with a folder. The client gets the file with the other fields
//! of the response.

use std::rc::Rc;
use std::sync::Arc;

use millrace_config::FolderRoute;
use millrace_engine::{Engine, Key};
use millrace_files::RequestPath;
use millrace_http1::{
    FieldName, Framing, NameSet, ResponseHead, destination, forwarded_fields, path,
};

use crate::cached::{CacheContext, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Exchange, NextStep, Reason, Stage};
use crate::files::{NamedFile, ServedFile};
use crate::origin::release;
use crate::route_match;

/// The fields of a file, which the response does not set. All others are the response's.
const OF_FILE: NameSet = NameSet::new(&[
    FieldName::AcceptRanges,
    FieldName::Age,
    FieldName::ContentRange,
    FieldName::Date,
    FieldName::Etag,
    FieldName::LastModified,
    FieldName::Server,
    FieldName::Trailer,
]);

/// Returns whether the final response names a file, and the route permits that.
#[inline]
pub(crate) fn names_file(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    response.has_any(&FIELDS) && response.status() == 200 && exchange.permits_sendfile()
}

/// The fields that name a file.
const FIELDS: NameSet = NameSet::new(&[FieldName::XSendfile, FieldName::XAccelRedirect]);

fn field_of(response: &ResponseHead) -> Option<(FieldName, &[u8])> {
    [FieldName::XSendfile, FieldName::XAccelRedirect].into_iter().find_map(|name| {
        let field = response.find(name)?;
        Some((name, response.value_of(field)))
    })
}

/// Returns the file that the response of the exchange's origin names; `None` if it cannot be a file
/// inside the folder that the route permits.
fn named_file(exchange: &Exchange) -> Option<NamedFile> {
    let snapshot = exchange.snapshot();
    let permitted = snapshot.route_of(exchange.service, exchange.plan)?.sendfile.as_ref()?;
    let (name, value) = field_of(&exchange.response)?;
    let (folder, path) = match name {
        FieldName::XSendfile => (permitted.clone(), below(value, permitted)?),
        _ => below_route(exchange, value, permitted)?,
    };
    RequestPath::decode(path).ok()?;
    Some(NamedFile { folder, path: path.to_vec() })
}

/// Returns the rest of an absolute path that begins with that of a folder.
fn below<'a>(value: &'a [u8], folder: &FolderRoute) -> Option<&'a [u8]> {
    let folder = folder.path.as_os_str().as_encoded_bytes();
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    value.strip_prefix(folder).filter(|rest| rest.starts_with(b"/"))
}

/// Returns the folder of the route for a path, if it is inside the permitted one, and the path
/// below it.
fn below_route<'a>(
    exchange: &Exchange,
    value: &'a [u8],
    permitted: &FolderRoute,
) -> Option<(Arc<FolderRoute>, &'a [u8])> {
    let service = exchange.snapshot().service(exchange.service);
    let destination = destination(&exchange.request).ok()?;
    let (path, _) = path::split_query(value);
    // A path in another form than the normal one could be that of another route.
    if path::normalise(path) != path {
        return None;
    }
    let route = route_match::select_for_path(service, &destination, path)?;
    let folder = route.folder.as_ref()?;
    let is_inside = folder.path.starts_with(&permitted.path);
    // The path of a route with a folder ends with a slash.
    let below = path.get(route.path.len() - 1..)?;
    is_inside.then(|| (folder.clone(), below))
}

/// Makes the file that the response names the response.
pub(crate) fn follow<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let exchange = core.exchange(key);
    let is_complete = exchange.has_received_request();
    let Some(named) = named_file(exchange) else {
        return NextStep::End(Reason::MalformedResponse);
    };
    match exchange.transaction.framing {
        Framing::None | Framing::Length(0) => release::finish_transaction(core, key),
        // The body is of no use.
        _ => release::abandon_transaction(core, key),
    }
    if core.exchange(key).is_refresh() {
        return NextStep::EndRefresh;
    }
    waiting::leave_cache(core, key);
    let ExchangeParts { engine, pipes, exchange, .. } = core.parts(key);
    if !is_complete {
        // The rest of the body would be taken for the next request.
        exchange.upload.abandon(engine, pipes);
        exchange.is_persistent = false;
    }
    exchange.caching = CacheContext::default();
    exchange.file_mut().named = Some(named);
    NextStep::Return(Stage::File)
}

/// Returns a file with the fields of the response that has named it.
pub(crate) fn with_fields(file: &ServedFile, response: &ResponseHead) -> Rc<ServedFile> {
    let fields = forwarded_fields(response).filter(|field| !OF_FILE.contains(field.known));
    let fields: Vec<_> = fields
        .map(|field| (field.known, response.name_of(field), response.value_of(field)))
        .collect();
    let is_replaced = |name| matches!(name, FieldName::ContentType | FieldName::CacheControl);
    Rc::new(file.with_header(file.header.with_fields(&fields, is_replaced)))
}
