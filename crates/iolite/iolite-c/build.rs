//! Sets the soname of the shared library: the part of the version that changes with the ABI.

fn main() {
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libiolite.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
