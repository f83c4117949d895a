//! What goes wrong around the wall: servers that misbehave, names that do not resolve, a gate that dies, a record
//! that can not be written, ceilings, and policies that are none. Whatever it is, it ends in a reason, never in a way out.

mod ceilings;
mod gate;
mod policy;
mod upstream;
mod visible;
