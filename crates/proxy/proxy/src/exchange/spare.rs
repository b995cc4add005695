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
        let bytes = |head: &Fields| head.bytes().len() + size_of_val(head.fields());
        let headers = bytes(&exchange.request) + bytes(&exchange.answer);
        if self.exchanges.len() < SPARE_MAX && headers <= SPARE_BYTES_MAX {
            exchange.reset();
            self.exchanges.push(exchange);
        }
    }
}

/// The most exchanges that are kept, and the size of headers above which one is dropped.
const SPARE_MAX: usize = 256;
const SPARE_BYTES_MAX: usize = 16 * 1024;
