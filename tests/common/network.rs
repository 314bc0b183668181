//! What stands between a program and its provider: proxies and TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A file of the certificates made for these tests: `authority.pem` signs `good.pem` (localhost, 127.0.0.1 and
/// provider.invalid), `expired.pem` and `other.pem` (another name).
pub fn certificate(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tls")
        .join(name)
}

fn listen(mut serve: impl FnMut(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process.
    thread::spawn(move || listener.incoming().flatten().for_each(&mut serve));
    address
}

/// Says this to whoever connects, asked or not.
pub fn tcp_server(said: &'static [u8]) -> SocketAddr {
    listen(move |mut stream| {
        let _gone = stream.write_all(said);
        // Until the other side has read it and closes.
        let _rest = stream.read_to_end(&mut Vec::new());
    })
}

/// Answers every connection in TLS with this certificate, once, with these bytes.
pub fn tls_server(name: &str, answer: &[u8]) -> SocketAddr {
    let chain = CertificateDer::pem_file_iter(certificate(name)).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(certificate("key.pem")).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(ring)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let answer = answer.to_vec();
    listen(move |stream| {
        let (config, answer) = (Arc::clone(&config), answer.clone());
        thread::spawn(move || {
            let session = rustls::ServerConnection::new(config).unwrap();
            let mut stream = rustls::StreamOwned::new(session, stream);
            if read_head(&mut stream).is_some() {
                let _gone = stream.write_all(&answer);
                stream.conn.send_close_notify();
                let _gone = stream.flush();
            }
        });
    })
}

/// A proxy that leads every connection to one place, and remembers what it was asked.
pub struct Proxy {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Tunnels and forwarded requests of HTTP. `refuse` answers CONNECT with this instead.
    pub fn http(to: SocketAddr, refuse: Option<&'static str>) -> Self {
        Self::start(move |mut client, asked| {
            let head = read_head(&mut client)?;
            let tunnel = head.starts_with("CONNECT ");
            asked.lock().unwrap().push(head.clone());
            if let (true, Some(refusal)) = (tunnel, refuse) {
                client.write_all(refusal.as_bytes()).ok()?;
                return None;
            }
            let mut server = TcpStream::connect(to).ok()?;
            if tunnel {
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").ok()?;
            } else {
                server.write_all(head.as_bytes()).ok()?;
            }
            pass(&client, &server);
            Some(())
        })
    }

    /// SOCKS 5 with a user name and a password.
    pub fn socks(to: SocketAddr, login: (&'static str, &'static str)) -> Self {
        Self::start(move |mut client, asked| {
            let mut take = |n: usize| {
                let mut bytes = vec![0; n];
                client.read_exact(&mut bytes).ok().map(|()| bytes)
            };
            let methods = take(2)?[1];
            take(usize::from(methods))?;
            client.write_all(&[5, 2]).ok()?;
            let mut take = |n: usize| {
                let mut bytes = vec![0; n];
                client.read_exact(&mut bytes).ok().map(|()| bytes)
            };
            let length = take(2)?[1];
            let user = take(usize::from(length))?;
            let length = take(1)?[0];
            let password = take(usize::from(length))?;
            let known = user == login.0.as_bytes() && password == login.1.as_bytes();
            client.write_all(&[1, u8::from(!known)]).ok()?;
            let mut take = |n: usize| {
                let mut bytes = vec![0; n];
                client.read_exact(&mut bytes).ok().map(|()| bytes)
            };
            let kind = take(4)?[3];
            let host = match kind {
                3 => {
                    let length = take(1)?[0];
                    String::from_utf8(take(usize::from(length))?).ok()?
                }
                _ => format!("{:?}", take(4)?),
            };
            let port = take(2)?;
            let port = u16::from_be_bytes([port[0], port[1]]);
            asked.lock().unwrap().push(format!("{host}:{port}"));
            let server = TcpStream::connect(to).ok()?;
            client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
            pass(&client, &server);
            Some(())
        })
    }

    fn start(serve: impl Fn(TcpStream, &Mutex<Vec<String>>) -> Option<()> + Send + Sync + 'static) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (serve, notes) = (Arc::new(serve), Arc::clone(&asked));
        let address = listen(move |stream| {
            let (serve, notes) = (Arc::clone(&serve), Arc::clone(&notes));
            thread::spawn(move || serve(stream, &notes));
        });
        Self { address, asked }
    }

    /// Heads of requests to an HTTP proxy, `host:port` of one that speaks SOCKS.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn pass(one: &TcpStream, other: &TcpStream) {
    let (mut from, mut to) = (one.try_clone().unwrap(), other.try_clone().unwrap());
    let there = thread::spawn(move || {
        let _gone = std::io::copy(&mut from, &mut to);
        let _gone = to.shutdown(std::net::Shutdown::Write);
    });
    let (mut from, mut to) = (other.try_clone().unwrap(), one.try_clone().unwrap());
    let _gone = std::io::copy(&mut from, &mut to);
    let _gone = to.shutdown(std::net::Shutdown::Write);
    let _ended = there.join();
}

/// Everything up to the empty line, that included.
fn read_head(stream: &mut impl Read) -> Option<String> {
    // Byte by byte: what follows is for somebody else.
    let mut reader = BufReader::with_capacity(1, stream);
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        if head[before..].trim_end().is_empty() {
            return Some(head);
        }
    }
}
