//! Replaces hyper's own answers to bytes that it cannot read as a request. They have no body; callers get an error of
//! the usual shape instead.
//!
//! hyper offers no other way to change them than the bytes that it writes.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::{
    headers::protect,
    problem::{Code, Problem},
};

/// The beginnings of hyper's own answers.
const NOT_A_REQUEST: &str = "HTTP/1.1 400 Bad Request";
const TOO_LARGE: &str = "HTTP/1.1 431 Request Header Fields Too Large";

/// An answer in the place of hyper's own.
pub(crate) struct Instead {
    pub(crate) status: u16,
    pub(crate) bytes: Vec<u8>,
}

/// Returns the answer to write instead of `written`; `None` if that is not an answer of hyper's own.
pub(crate) fn instead_of(written: &[u8]) -> Option<Instead> {
    let head = str::from_utf8(written).ok()?.strip_suffix("\r\n\r\n")?;
    let (status, headers) = head.split_once("\r\n")?;
    let problem = match status {
        NOT_A_REQUEST => Problem::new(Code::NotHttp, "this is no request of HTTP/1"),
        TOO_LARGE => Problem::new(Code::HeadTooLarge, "the head of the request is too large"),
        _ => return None,
    };
    // Answers of this server always have more headers, and text of clients never gets a line of its own in a body.
    let name = |line: &str| line.split_once(':').map(|(name, _)| name.to_ascii_lowercase());
    let of_hyper = |line: &str| {
        matches!(name(line).as_deref(), Some("connection" | "content-length" | "date" | "transfer-encoding"))
    };
    headers.split("\r\n").all(of_hyper).then(|| render(&problem))
}

fn render(problem: &Problem) -> Instead {
    let (status, body) = (problem.code.status(), problem.body());
    let mut headers = HeaderMap::new();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    protect(&mut headers, false);
    let mut bytes = format!("HTTP/1.1 {status}\r\n").into_bytes();
    for (name, value) in &headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body.as_bytes());
    Instead { status: status.as_u16(), bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_of_hyper_are_replaced() {
        let own = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        let instead = instead_of(own.as_bytes()).expect("replaced");
        let text = String::from_utf8(instead.bytes).expect("text");
        assert!(instead.status == 400 && text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
        assert!(text.contains("nosniff") && text.ends_with('}') && text.contains("not_http"), "{text}");
        for other in [
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request",
            "\r\n\r\n",
            "",
        ] {
            assert!(instead_of(other.as_bytes()).is_none(), "{other}");
        }
    }
}
