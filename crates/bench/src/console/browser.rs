//! A real page: a small client of the WebDriver protocol, and the steps of a person.

use std::{
    io::{BufRead, BufReader, Write as _},
    net::TcpStream,
    process::{Child, ChildStdout, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use crate::Failure;

const ARGUMENTS: [&str; 5] =
    ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1360,1000"];

/// Notes the longest task and the page at that time. Browsers tell tasks of 50 ms and more.
const WATCH: &str = "window.longest = [0, '']; new PerformanceObserver((list) => { for (const entry of list.getEntries()) \
                     if (entry.duration > longest[0]) longest = [entry.duration, location.hash] }).observe({ type: \
                     'longtask', buffered: true })";

/// The pages that somebody goes through.
const PAGES: [&str; 6] = [
    "#/locks?sort=name",
    "#/locks?sort=held&page=7",
    "#/locks?prefix=bench/console/00",
    "#/lock?name=bench/console/000042",
    "#/hot",
    "#/locks",
];

/// Opens the console, lets it run for a while, goes through its pages, and tells the longest task in milliseconds.
pub(super) fn longest_task(url: &str, wait: Duration) -> Result<f64, Failure> {
    let browser = Browser::start()?;
    browser.call("POST", "/url", &json!({ "url": url }))?;
    browser.run(WATCH, &json!([]))?;
    sleep(wait);
    for page in PAGES {
        browser.run("location.hash = arguments[0]", &json!([page]))?;
        sleep(wait / 10);
    }
    let shown = browser.run("return document.querySelectorAll('td.c-name').length", &json!([]))?;
    if shown.as_u64().unwrap_or(0) == 0 {
        let page = browser.run("return document.body.innerText", &json!([]))?;
        return Err(format!("the page shows no lock: {page}").into());
    }
    let longest = browser.run("return longest", &json!([]))?;
    if let Some(page) = longest[1].as_str().filter(|page| !page.is_empty()) {
        eprintln!("the longest task was at {page}");
    }
    longest[0].as_f64().ok_or_else(|| "the page tells no time".into())
}

/// A chromium with one window.
struct Browser {
    driver: Child,
    /// Kept open, because it may say more.
    _said: BufReader<ChildStdout>,
    port: u16,
    session: String,
}

impl Browser {
    fn start() -> Result<Self, Failure> {
        let mut command = Command::new("chromedriver");
        let mut driver =
            command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(
                |error| format!("chromedriver of Debian's package chromium-driver does not start: {error}"),
            )?;
        let mut said = BufReader::new(driver.stdout.take().ok_or("no output")?);
        let port = (&mut said)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse().ok());
        let mut browser =
            Self { driver, _said: said, port: port.ok_or("it tells no port")?, session: String::new() };
        let wanted = json!({ "goog:chromeOptions": { "args": ARGUMENTS } });
        let session = browser.call("POST", "", &json!({ "capabilities": { "alwaysMatch": wanted } }))?;
        browser.session = format!("/{}", session["sessionId"].as_str().ok_or("no session")?);
        Ok(browser)
    }

    /// Runs the body of a function in the page.
    fn run(&self, script: &str, arguments: &Value) -> Result<Value, Failure> {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": arguments }))
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        let (session, body) = (&self.session, body.to_string());
        write!(
            stream,
            "{method} /session{session}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )?;
        let answer = answer(&mut BufReader::new(stream))?;
        if answer["value"]["error"].is_null() {
            return Ok(answer["value"].clone());
        }
        Err(format!("{method} {path}: {}", answer["value"]).into())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; its driver alone would leave it behind.
        drop(self.call("DELETE", "", &json!({})));
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

/// The JSON of an answer. The connection stays open after it, so only its length tells where it ends.
fn answer(reader: &mut impl BufRead) -> Result<Value, Failure> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        match reader.read_line(&mut line)? {
            0 => return Err("the answer ended early".into()),
            _ if line == "\r\n" => break,
            _ => {}
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(serde_json::from_slice(&body)?)
}
