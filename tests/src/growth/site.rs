//! Call sites of the worker's turns. Callgrind counts the calls from each function separately, so
//! that one profile has the counts of as many exchanges as there are functions here.

/// A function that calls its argument and returns the result.
pub(super) type Site = fn(&mut dyn FnMut() -> bool) -> bool;

macro_rules! row {
    ($($name:ident)*) => {
        $(#[inline(never)]
        pub(super) fn $name(turn: &mut dyn FnMut() -> bool) -> bool {
            let goes_on = turn();
            // The difference between the functions prevents the compiler from merging them.
            black_box(concat!(module_path!(), stringify!($name)));
            goes_on
        })*

        pub(super) const ROW: [Site; 16] = [$($name),*];
    };
}

macro_rules! rows {
    ($($name:ident)*) => {
        $(mod $name {
            use std::hint::black_box;

            use crate::growth::site::Site;

            row! { at0 at1 at2 at3 at4 at5 at6 at7 at8 at9 at10 at11 at12 at13 at14 at15 }
        })*

        const ROWS: [[Site; 16]; 16] = [$($name::ROW),*];
    };
}

rows! {
    row0 row1 row2 row3 row4 row5 row6 row7 row8 row9 row10 row11 row12 row13 row14 row15
}

/// Number of sites.
pub(super) const SITES: usize = 256;

/// Returns the site with a number below [`SITES`].
pub(super) fn site(number: usize) -> Site {
    ROWS[number / 16][number % 16]
}

/// Returns the number of the site whose function has this name in a profile.
pub(super) fn number_of(function: &str) -> Option<usize> {
    let (row, at) = function.strip_prefix(PREFIX)?.split_once("::at")?;
    Some(row.parse::<usize>().ok()? * 16 + at.parse::<usize>().ok()?)
}

const PREFIX: &str = "millrace_tests::growth::site::row";
