//! The part of a wire that only the connection of a FastCGI server uses.

use millrace_engine::{Buffer, Engine, HeldBytes, ShutdownHow};

use super::{ReceiveResult, Wire};
use crate::conn::record_layer::{Translated, emptied};
use crate::conn::recv_buffer::RecvBuffer;

impl Wire {
    /// Prepares a FastCGI connection for the response to a request that is about to be sent.
    pub(crate) fn begin_records(&mut self, is_head: bool, header_max: usize, target: &[u8]) {
        self.records.get_or_insert_default().begin(is_head, header_max, target);
    }

    /// Returns whether this is the connection of a FastCGI server.
    #[inline]
    pub(crate) fn has_records(&self) -> bool {
        self.records.is_some()
    }

    /// Returns whether the received header is a local redirect of a program.
    pub(crate) fn is_local_redirect(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.is_local_redirect)
    }

    /// Returns whether a program has responded with what is no response.
    pub(crate) fn has_malformed_records(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.is_malformed)
    }

    /// Takes the beginning of what a program wrote to its standard error, with the target of its
    /// request; `None` if it wrote nothing.
    pub(crate) fn take_program_errors(&mut self) -> Option<(&[u8], Vec<u8>)> {
        let records = self.records.as_mut()?;
        let errors = records.decoder.take_errors();
        (!errors.is_empty()).then_some((&records.target[..], errors))
    }

    /// Returns the received bytes with which a response begins.
    #[inline]
    pub(crate) fn response_bytes(&self) -> &[u8] {
        match &self.records {
            None => self.recv_buffer.bytes(),
            Some(records) if records.has_header() => &records.header,
            Some(_) => &[],
        }
    }

    /// Consumes the header of a response.
    #[inline]
    pub(crate) fn consume_header(&mut self, length: usize) {
        match &mut self.records {
            None => self.recv_buffer.consume(length),
            Some(records) => records.header = emptied(std::mem::take(&mut records.header)),
        }
    }

    /// Returns whether a FastCGI connection has received the end of its response.
    #[inline]
    pub(super) fn has_idle_records(&self) -> bool {
        self.records.as_ref().is_none_or(|records| records.is_idle())
    }

    /// Returns whether bytes may be moved from the socket past the records.
    #[inline]
    pub(super) fn may_bypass_records(&self) -> bool {
        self.records.as_ref().is_none_or(|records| records.may_bypass())
    }

    /// Notes that payload was moved from the socket past the records.
    #[inline]
    pub(super) fn skip_records(&mut self, count: usize) {
        if let Some(records) = &mut self.records {
            records.skip(count);
        }
    }

    /// Translates received records. Returns `None` if nothing came of them, and another receive is
    /// outstanding.
    #[inline(never)]
    pub(super) fn receive_records<E: Engine>(
        &mut self,
        engine: &mut E,
        mut buffer: Buffer,
    ) -> Option<ReceiveResult> {
        let records = self.records.as_mut().expect("the caller has checked that there are some");
        let had_header = records.has_header();
        let Some(Translated { range, is_cut }) = records.translate(&mut buffer) else {
            engine.recycle(buffer);
            self.is_broken = true;
            return Some(ReceiveResult::Broken);
        };
        let has_news = records.has_header() && !had_header;
        let prefix = std::mem::take(&mut records.prefix);
        if is_cut {
            // Unread bytes can still be read; after them, a receive finds that the wire is broken.
            self.is_broken = true;
            engine.shutdown(&self.fd, ShutdownHow::Read);
        }
        let has_bytes = !range.is_empty() || !prefix.is_empty();
        if !has_bytes {
            engine.recycle(buffer);
            if has_news || is_cut {
                return Some(ReceiveResult::Bytes);
            }
            self.receive(engine, Buffer::SIZE);
            return None;
        }
        match &mut self.recv_buffer {
            RecvBuffer::Empty if prefix.is_empty() => {
                buffer.set_filled(range.end);
                self.recv_buffer = RecvBuffer::Lent { buffer, read: range.start };
            }
            RecvBuffer::Held(held) => {
                held.append(&prefix);
                held.append(&buffer[range]);
                engine.recycle(buffer);
            }
            _ => {
                let held = HeldBytes::copy(engine.budget(), &[&prefix, &buffer[range]]);
                self.recv_buffer = RecvBuffer::Held(held);
                engine.recycle(buffer);
            }
        }
        Some(ReceiveResult::Bytes)
    }
}
