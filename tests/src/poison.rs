//! Cache poisoning and deception: does one client's request change another client's response?
//!
//! A *mutant* is what an attacker sends on one connection, with the requests of victims before and
//! after it. It is played against one program with a cache. A second program with the same
//! configuration, the *control*, gets only the victims' requests. Every response to a victim must
//! be the same from both, apart from Age, Date and Cache-Status.
//!
//! The origins behind both programs are models ([`model`]): a response is a function of the request
//! that reached the origin, so a difference can only come from the program between them.
//! [`mutant`] has the classes and services, docs/design/testing.md the reasons.
//!
//! Some differences would be faults of the origin, so the models avoid them:
//!
//! * Fields that merely name the client, such as X-Forwarded-For, are in a page only if it varies
//!   by them.
//! * Origins of the class Early take a complete body for the next request, so an attacker sends the
//!   last byte only after the response.
//! * Several lines of an unknown field equal one line with commas (RFC 9110 section 5.3).

mod broken_cache;
pub mod campaign;
mod client;
mod fields;
mod generate;
pub mod model;
pub mod mutant;
mod origin;
pub mod pair;
mod path_reading;
mod paths;
mod program;
mod shrink;
