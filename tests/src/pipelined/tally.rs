//! The results of rounds.

/// The results of one round or of several.
#[derive(Clone, Copy, Default, Debug)]
pub struct Tally {
    /// Responses that belong to their requests.
    pub right: u64,
    /// Errors of the program's own: 502, 503 and 504.
    pub errors: u64,
    /// Responses that the program has visibly cut.
    pub cut: u64,
    /// Requests that reached an origin before its earlier responses.
    pub pipelined: u64,
    /// Responses at which an origin did something wrong.
    pub faults: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.right += other.right;
        self.errors += other.errors;
        self.cut += other.cut;
        self.pipelined += other.pipelined;
        self.faults += other.faults;
    }
}
