mod demo;
mod formats;
fn main() {}
