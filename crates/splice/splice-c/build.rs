//! Gives the shared library its soname: the part of the version that a change of the ABI changes.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmrsplice.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
