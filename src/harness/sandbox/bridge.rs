//! The way out of the network namespace: a loopback port inside, the gateway's Unix socket outside.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::sys::task;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, socket};

/// Connections at one time; an agent uses a handful.
const MAX_CONNECTIONS: usize = 64;

/// Brings the loopback interface of this network namespace up.
pub(super) fn raise_loopback() -> io::Result<()> {
    // No protocol means NETLINK_ROUTE.
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    // nlmsghdr: length, RTM_NEWLINK, REQUEST|ACK, sequence, port. ifinfomsg: family, pad, type, index 1, UP, UP.
    let mut message = Vec::with_capacity(32);
    message.extend_from_slice(&32u32.to_ne_bytes());
    message.extend_from_slice(&16u16.to_ne_bytes());
    message.extend_from_slice(&5u16.to_ne_bytes());
    message.extend_from_slice(&1u32.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(&1i32.to_ne_bytes());
    message.extend_from_slice(&1u32.to_ne_bytes());
    message.extend_from_slice(&1u32.to_ne_bytes());
    send(&socket, &message, SendFlags::empty())?;
    let mut reply = [0u8; 256];
    let (n, _) = recv(&socket, &mut reply[..], RecvFlags::empty())?;
    // The answer is an error message whose code is 0 when all is well.
    let code = reply
        .get(16..20)
        .filter(|_| n >= 20)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(-1, i32::from_ne_bytes);
    if code == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(-code))
    }
}

/// Passes connections to the port on to the socket, until this process ends.
pub(super) fn serve(port: u16, path: PathBuf) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let busy = std::sync::Arc::new(());
    let _passing = task::thread("reef-bridge", move || {
        for stream in listener.incoming().flatten() {
            if std::sync::Arc::strong_count(&busy) > MAX_CONNECTIONS {
                continue;
            }
            let (path, held) = (path.clone(), std::sync::Arc::clone(&busy));
            // Without a thread the connection is closed, as without a gateway.
            let _passing = task::thread("reef-bridged", move || {
                // A gateway that is gone closes the connection, which is what the program inside should see.
                let _closed = pass(&stream, &path);
                drop(held);
            });
        }
    })?;
    Ok(())
}

fn pass(inside: &TcpStream, path: &std::path::Path) -> io::Result<()> {
    let outside = UnixStream::connect(path)?;
    inside.set_nodelay(true)?;
    let (mut from_inside, mut to_outside) = (inside.try_clone()?, outside.try_clone()?);
    let up = task::thread("reef-upwards", move || {
        let _end = pour(&mut from_inside, &mut to_outside);
        let _closed = to_outside.shutdown(Shutdown::Write);
    })?;
    let (mut from_outside, mut to_inside) = (outside, inside.try_clone()?);
    let _end = pour(&mut from_outside, &mut to_inside);
    let _closed = to_inside.shutdown(Shutdown::Both);
    let _ended = up.join();
    Ok(())
}

fn pour(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = [0; 16 * 1024];
    loop {
        let n = from.read(&mut chunk)?;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&chunk[..n])?;
    }
}
