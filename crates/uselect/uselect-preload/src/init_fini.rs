//! Functions that the loader calls before main and at exit.

use crate::{config, process, report};

extern "C" fn before_main() {
    config::get();
    process::init();
}

extern "C" fn at_exit() {
    report::write_report();
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
