//! Ended exchanges that are kept for the memory of their headers. The worker's budget does not
//! count this memory: `EXCHANGES_MAX` and `HEADER_BYTES_MAX` bound it.

use crate::exchange::Exchange;

/// A pool of reset exchanges.
#[derive(Debug, Default)]
pub(crate) struct ExchangePool {
    #[expect(clippy::vec_box, reason = "exchanges move between the pool and the table")]
    exchanges: Vec<Box<Exchange>>,
}

impl ExchangePool {
    /// Returns a reset exchange.
    pub(crate) fn take(&mut self) -> Box<Exchange> {
        self.exchanges.pop().unwrap_or_default()
    }

    /// Takes an ended exchange back. Its transfers must hold no pipe.
    pub(crate) fn recycle(&mut self, mut exchange: Box<Exchange>) {
        if self.exchanges.len() < EXCHANGES_MAX && is_small(&exchange) {
            exchange.reset();
            self.exchanges.push(exchange);
        }
    }
}

/// Returns whether the headers' memory, including unused capacity, is small enough to be kept.
fn is_small(exchange: &Exchange) -> bool {
    exchange.request.memory_bytes() + exchange.response.memory_bytes() <= HEADER_BYTES_MAX
}

/// The maximum number of exchanges in the pool: 4 MiB of header memory in all, besides the
/// exchanges themselves.
const EXCHANGES_MAX: usize = 256;
const HEADER_BYTES_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_http1::{HeadLimits, HeadScan};

    /// Returns an exchange whose request and response have `fields` fields of `bytes` bytes each.
    fn exchange(fields: usize, bytes: usize) -> Box<Exchange> {
        let limits = HeadLimits { bytes_max: 1 << 20, fields_max: 1000, target_bytes_max: 100 };
        let field = format!("a:{}\r\n", "b".repeat(bytes - 4));
        let head = |line: &str| format!("{line}\r\n{}\r\n", field.repeat(fields)).into_bytes();
        let mut exchange = Box::<Exchange>::default();
        let (request, response) = (head("GET / HTTP/1.0"), head("HTTP/1.1 200 OK"));
        let used = exchange.request.parse(&request, &mut HeadScan::default(), &limits);
        assert_eq!(used, Ok(Some(request.len())));
        let used = exchange.response.parse(&response, &mut HeadScan::default(), &limits);
        assert_eq!(used, Ok(Some(response.len())));
        exchange
    }

    fn is_kept(exchange: Box<Exchange>) -> bool {
        let mut pool = ExchangePool::default();
        pool.recycle(exchange);
        !pool.exchanges.is_empty()
    }

    #[test]
    fn exchanges_with_small_headers_are_kept() {
        assert!(is_kept(exchange(20, 40)));
        assert!(!is_kept(exchange(1, 20_000)), "many bytes");
        assert!(!is_kept(exchange(400, 4)), "many fields in few bytes");
        let mut cleared = exchange(400, 4);
        cleared.request.clear();
        cleared.response.clear();
        assert!(!is_kept(cleared), "memory of cleared headers");
    }
}
