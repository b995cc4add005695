//! Ended exchanges, kept for the memory of their headers.

use millrace_http1::Fields;

use crate::exchange::Exchange;

/// Exchanges to be used again.
#[derive(Debug, Default)]
pub(crate) struct SpareExchanges {
    #[expect(clippy::vec_box, reason = "they go back and forth between here and the table")]
    exchanges: Vec<Box<Exchange>>,
}

impl SpareExchanges {
    /// An exchange as new.
    pub(crate) fn take(&mut self) -> Box<Exchange> {
        self.exchanges.pop().unwrap_or_default()
    }

    /// Takes an ended exchange back, whose transfers hold no pipe.
    pub(crate) fn put(&mut self, mut exchange: Box<Exchange>) {
        if self.exchanges.len() < SPARE_MAX && is_small(&exchange) {
            exchange.reset();
            self.exchanges.push(exchange);
        }
    }
}

/// Whether its headers are worth keeping. Few bytes have few fields.
fn is_small(exchange: &Exchange) -> bool {
    let bytes = exchange.request.bytes().len() + exchange.answer.bytes().len();
    let fields = |header: &Fields| size_of_val(header.fields());
    let all = || bytes + fields(&exchange.request) + fields(&exchange.answer);
    bytes <= SPARE_BYTES_MAX / 4 || all() <= SPARE_BYTES_MAX
}

/// The most exchanges that are kept, and the size of headers above which one is dropped.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 16 * 1024;
