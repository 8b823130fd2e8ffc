//! The console in a browser, as people use it: Debian's chromium, driven through chromedriver.
//!
//! Pictures are left in `target/console`, to be looked at. axe-core, which judges accessibility, is fetched by `./test`.

mod accessibility;
mod browser;
mod live;
mod operating;
mod pages;
mod safety;
mod webhook;
mod world;
