//! The proxy in front of a server that sends everything back.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Instant,
};

use super::*;

const TEXT: &[u8; 10] = b"0123456789";

/// A server that sends back all that it hears, and counts it; it lives as long as the test.
fn echo() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("free");
    let address = listener.local_addr().expect("bound");
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let all = heard.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, heard) = (stream.expect("accepted"), all.clone());
            thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                    heard.lock().expect("no panic").extend(&buffer[..bytes]);
                    if stream.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, heard)
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    stream
}

/// Sends the text and reads until the end; a reset is an end too.
fn exchange(mut stream: TcpStream) -> Vec<u8> {
    stream.write_all(TEXT).expect("sent");
    // Only the sending side: the rest may still come.
    stream.shutdown(Shutdown::Write).ok();
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return answer,
            Ok(bytes) => answer.extend(&buffer[..bytes]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return answer,
            Err(error) => panic!("{error} after {answer:?}"),
        }
    }
}

#[test]
fn a_good_line_carries_everything() {
    let (server, heard) = echo();
    let proxy = Proxy::start(server).expect("started");
    for _ in 0..3 {
        assert_eq!(exchange(connect(&proxy)), TEXT);
    }
    assert_eq!((proxy.accepted(), proxy.struck(), heard.lock().expect("no panic").len()), (3, 0, 30));
}

#[test]
fn a_connection_is_cut_after_exactly_so_many_bytes() {
    for after in 0..=10 {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (server, heard) = echo();
            let proxy = Proxy::start(server).expect("started");
            proxy.next(Fault { direction, after, action: Action::Cut });
            let answer = exchange(connect(&proxy));
            let heard = heard.lock().expect("no panic").clone();
            match direction {
                Direction::ToServer => assert!(TEXT[..after as usize].starts_with(&answer)),
                Direction::ToClient => {
                    assert_eq!((&answer[..], &heard[..]), (&TEXT[..after as usize], &TEXT[..]));
                }
            }
            assert_eq!(proxy.struck(), u64::from(after < 10), "at the byte after the last good one");
            assert_eq!(exchange(connect(&proxy)), TEXT, "the next one is good");
        }
    }
}

#[test]
fn swallowed_replies_never_come_and_the_request_is_heard() {
    let (server, heard) = echo();
    let proxy = Proxy::start(server).expect("started");
    let mut stream = connect(&proxy);
    stream.write_all(TEXT).expect("sent");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).expect("a good connection so far");
    proxy.now(Fault { direction: Direction::ToClient, after: 4, action: Action::Swallow });
    stream.write_all(TEXT).expect("sent");
    stream.read_exact(&mut answer[..4]).expect("before the fault");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
    let silence = stream.read(&mut answer).expect_err("silence");
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    assert_eq!(heard.lock().expect("no panic").len(), 20);
}

#[test]
fn cut_all_and_refuse() {
    let (server, _) = echo();
    let proxy = Proxy::start(server).expect("started");
    let mut streams = [connect(&proxy), connect(&proxy)];
    for stream in &mut streams {
        stream.write_all(TEXT).expect("sent");
        stream.read_exact(&mut [0; 10]).expect("a good connection");
    }
    proxy.refuse(true);
    proxy.cut_all();
    for mut stream in streams {
        let end = stream.read(&mut [0; 10]);
        assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(proxy.address()).is_ok() {
        assert!(Instant::now() < deadline, "it does not refuse");
    }
    proxy.refuse(false);
    while TcpStream::connect(proxy.address()).is_err() {
        assert!(Instant::now() < deadline, "it refuses for ever");
    }
    assert_eq!(exchange(connect(&proxy)), TEXT);
}

/// A client that comes in the moment in which the proxy begins to refuse is refused too, or cut: none stays.
#[test]
fn nobody_slips_in_while_it_begins_to_refuse() {
    let (server, _) = echo();
    let proxy = Proxy::start(server).expect("started");
    let deadline = Instant::now() + Duration::from_secs(60);
    for _ in 0..200 {
        proxy.refuse(true);
        // It is accepted by the kernel, even if the proxy's thread has not heard of it by now.
        let late = TcpStream::connect(proxy.address());
        proxy.cut_all();
        if let Ok(mut late) = late {
            late.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
            // A socket that closes while the kernel accepts for it may tell nobody before the next byte comes.
            let end = late.write_all(TEXT).and_then(|()| late.read(&mut [0; 10]));
            assert!(!end.as_ref().is_ok_and(|bytes| *bytes > 0), "it got in");
            assert!(!end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "it was let wait");
        }
        proxy.refuse(false);
        while TcpStream::connect(proxy.address()).is_err() {
            assert!(Instant::now() < deadline, "it refuses for ever");
        }
    }
}

#[test]
fn a_pause_loses_nothing_and_a_delay_takes_its_time() {
    let (server, _) = echo();
    let proxy = Proxy::start(server).expect("started");
    proxy.pause(true);
    let mut stream = connect(&proxy);
    stream.write_all(TEXT).expect("sent");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("set");
    stream.read(&mut [0; 10]).expect_err("nothing yet");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    proxy.pause(false);
    stream.read_exact(&mut [0; 10]).expect("all of it");
    proxy.delay(Duration::from_millis(30));
    let sent = Instant::now();
    stream.write_all(TEXT).expect("sent");
    stream.read_exact(&mut [0; 10]).expect("all of it");
    assert!(sent.elapsed() >= Duration::from_millis(60), "there and back: {:?}", sent.elapsed());
}

#[test]
fn the_same_seed_makes_the_same_weather() {
    let run = |seed| {
        let mut random_faults = RandomFaults { dice: Dice::new(seed), per_mille: 500, most: 9 };
        (0..50).map(move |_| random_faults.next()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let (server, _) = echo();
    let proxy = Proxy::start(server).expect("started");
    proxy.random_faults(Some(RandomFaults { dice: Dice::new(1), per_mille: 1000, most: 9 }));
    let mut cut = connect(&proxy);
    cut.write_all(TEXT).expect("sent");
    let deadline = Instant::now() + Duration::from_secs(10);
    while proxy.struck() == 0 {
        assert!(Instant::now() < deadline, "no fault happened");
        thread::yield_now();
    }
}
