//! What the loader calls before main and at the end of the process.

use crate::{config, process, report};

extern "C" fn before_main() {
    config::get();
    process::begin();
}

extern "C" fn at_exit() {
    report::report();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
