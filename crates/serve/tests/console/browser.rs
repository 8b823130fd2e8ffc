//! A browser: a small client of the WebDriver protocol.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// How long a page may take to show something. On a busy machine a listing of many locks takes seconds, and the pause
/// after it is 20 times as long.
const LIMIT: Duration = Duration::from_secs(120);
/// The pause between two looks at a page.
const LOOK: Duration = Duration::from_millis(30);

/// A key that has no letter.
pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const SPACE: &str = "\u{e00d}";

/// Starts a driver; `None` if it got no port and has ended.
fn start_driver() -> Option<(Child, BufReader<ChildStdout>, u16)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver, which ./test installs");
    let mut said = BufReader::new(driver.stdout.take().expect("piped"));
    let mut lines = (&mut said).lines().map_while(Result::ok);
    let port =
        lines.find_map(|line| line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse().ok());
    if port.is_none() {
        driver.wait().expect("it has ended");
    }
    Some((driver, said, port?))
}

/// A chromium with one window.
pub(crate) struct Browser {
    driver: Child,
    /// Kept open, because the driver may print more.
    _said: BufReader<ChildStdout>,
    port: u16,
    session: String,
}

impl Browser {
    pub(crate) fn start() -> Self {
        // The driver takes a port of IPv4 and the same of IPv6. If another program has one of the two, it ends.
        let (driver, said, port) = (0..20).find_map(|_| start_driver()).expect("chromedriver finds a port");
        let mut browser = Self { driver, _said: said, port, session: String::new() };
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1360,1000",
        ];
        let chrome = json!({ "args": args });
        let logs = json!({ "browser": "ALL" });
        let limits = json!({ "script": LIMIT.as_millis() as u64 });
        let wanted = json!({ "goog:chromeOptions": chrome, "goog:loggingPrefs": logs, "timeouts": limits });
        let session = browser.call("POST", "", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = format!("/{}", session["sessionId"].as_str().expect("a session"));
        browser
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("chromedriver");
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let (session, length) = (&self.session, body.len());
        let head = format!(
            "{method} /session{session}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("sent");
        let answer = answer(&mut BufReader::new(stream));
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {}", answer["value"]);
        answer["value"].clone()
    }

    /// Opens an address.
    pub(crate) fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({ "url": url }));
    }

    /// Runs the body of a function in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.run_with(script, &json!([]))
    }

    pub(crate) fn run_with(&self, script: &str, arguments: &Value) -> Value {
        self.call("POST", "/execute/sync", &json!({ "script": script, "args": arguments }))
    }

    /// Does the same as [`run`](Self::run), and waits for the promise that the script returns.
    pub(crate) fn wait_for(&self, script: &str) -> Value {
        let script = format!(
            "const done = arguments[0]; (async () => {{ {script} }})().then(done, (e) => done(String(e)))"
        );
        self.call("POST", "/execute/async", &json!({ "script": script, "args": [] }))
    }

    /// Waits until an expression of the page is true.
    pub(crate) fn until(&self, expression: &str) {
        let start = Instant::now();
        let script = format!("return Boolean({expression})");
        while self.run(&script) != true {
            if start.elapsed() > LIMIT {
                let page = self.run("return document.body.innerText");
                panic!("not in time: {expression}\n{}", page.as_str().unwrap_or_default());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the page has this text.
    pub(crate) fn until_text(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Returns the text of the first element that matches.
    pub(crate) fn text(&self, selector: &str) -> String {
        let found =
            self.run_with("return document.querySelector(arguments[0])?.innerText ?? ''", &json!([selector]));
        found.as_str().expect("text").to_owned()
    }

    /// How many elements match.
    pub(crate) fn count(&self, selector: &str) -> u64 {
        let found =
            self.run_with("return document.querySelectorAll(arguments[0]).length", &json!([selector]));
        found.as_u64().expect("a number")
    }

    /// Clicks on the first element that matches, as a mouse does.
    pub(crate) fn click(&self, selector: &str) {
        self.until(&format!("document.querySelector({})", json!(selector)));
        let found = self.call("POST", "/element", &json!({ "using": "css selector", "value": selector }));
        let id = found.as_object().and_then(|found| found.values().next()).and_then(Value::as_str);
        self.call("POST", &format!("/element/{}/click", id.expect("an element")), &json!({}));
    }

    /// Presses keys, wherever the focus is.
    pub(crate) fn press(&self, keys: &str) {
        let each = keys.chars().flat_map(|key| {
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let each: Vec<Value> = each.collect();
        let actions = json!([{ "type": "key", "id": "keyboard", "actions": each }]);
        self.call("POST", "/actions", &json!({ "actions": actions }));
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.call("POST", "/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    pub(crate) fn resize(&self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Leaves a picture of the page to be looked at.
    pub(crate) fn picture(&self, name: &str) {
        let picture = self.call("GET", "/screenshot", &json!({}));
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/console");
        std::fs::create_dir_all(&folder).expect("a folder");
        let bytes = decode(picture.as_str().expect("a picture"));
        std::fs::write(folder.join(format!("{name}.png")), bytes).expect("written");
    }

    /// Returns the page's complaints since the last call, such as of a file that its policy refused.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({ "type": "browser" }));
        let lines = log.as_array().expect("lines").iter();
        lines.map(|line| line["message"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.call("DELETE", "", &json!({}));
        }
        // It ends its browser, too.
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

/// Reads the JSON of an answer. The connection stays open after it, so the header with its length decides.
fn answer(reader: &mut impl BufRead) -> Value {
    let mut length = 0;
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).expect("an answer") > 0, "the answer ended early");
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("all of it");
    serde_json::from_slice(&body).expect("JSON")
}

/// Decodes base64.
fn decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len() / 4 * 3));
    for letter in text.bytes().take_while(|letter| *letter != b'=') {
        let value = LETTERS.iter().position(|known| *known == letter).expect("base64") as u32;
        (bits, count) = (bits << 6 | value, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
