//! DNS messages for tests.

/// Flags of a response without error.
pub(crate) const OK: u16 = 0x8180;
/// A pointer to the name in the question, which follows the header.
pub(crate) const QNAME: [u8; 2] = [0xc0, 12];

/// Returns a name in wire format.
pub(crate) fn wire(name: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for label in name.split('.').filter(|label| !label.is_empty()) {
        wire.push(label.len() as u8);
        wire.extend_from_slice(label.as_bytes());
    }
    wire.push(0);
    wire
}

pub(crate) fn record(owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
    let mut record = owner.to_vec();
    record.extend_from_slice(&rtype.to_be_bytes());
    record.extend_from_slice(&1u16.to_be_bytes());
    record.extend_from_slice(&ttl.to_be_bytes());
    record.extend_from_slice(&(data.len() as u16).to_be_bytes());
    record.extend_from_slice(data);
    record
}

pub(crate) fn soa(ttl: u32, minimum: u32) -> Vec<u8> {
    let numbers = [1, 2, 3, 4, minimum].map(u32::to_be_bytes).concat();
    let data = [wire("ns.example"), wire("root.example"), numbers].concat();
    record(&wire("example"), 6, ttl, &data)
}

/// Returns a response to `query` with these flags (bytes 2 and 3) and records.
pub(crate) fn answer(
    query: &[u8],
    flags: u16,
    answers: &[Vec<u8>],
    authority: &[Vec<u8>],
) -> Vec<u8> {
    let mut message = query.to_vec();
    message[2..4].copy_from_slice(&flags.to_be_bytes());
    message[6..8].copy_from_slice(&(answers.len() as u16).to_be_bytes());
    message[8..10].copy_from_slice(&(authority.len() as u16).to_be_bytes());
    message.extend(answers.concat());
    message.extend(authority.concat());
    message
}
