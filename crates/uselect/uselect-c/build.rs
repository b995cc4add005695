//! Gives the shared library its soname, with the part of the version that changes with the ABI.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuselect.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
