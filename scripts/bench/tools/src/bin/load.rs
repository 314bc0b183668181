//! A load generator: closed loop, or open loop at a rate with latency counted from the scheduled moment; whole answers
//! or streams. Prints one JSON object.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reef_bench_tools::{Args, head_end, header, now_ns};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Plan {
    target: String,
    request: Vec<u8>,
    streaming: bool,
    warm_until: Instant,
    until: Instant,
    /// Between two requests of one connection, for an open loop.
    interval: Option<Duration>,
}

#[derive(Default)]
struct Tally {
    latency_us: Vec<u32>,
    first_byte_us: Vec<u32>,
    chunk_delay_us: Vec<u32>,
    requests: u64,
    errors: u64,
    receipts: u64,
    warm_requests: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args = Args::read();
    let connections = args.number("connections", 64.0) as usize;
    let seconds = args.number("seconds", 10.0);
    let warm = args.number("warm", 1.0);
    let rate = args.number("rate", 0.0);
    let streaming = args.is("stream");
    let target = args.text("target", "127.0.0.1:8900");
    let padding = "x".repeat(args.number("body-bytes", 200.0) as usize);
    let body = format!(
        "{{\"stream\":{streaming},\"model\":\"mock\",\"messages\":[{{\"role\":\"user\",\"content\":\"{padding}\"}}]}}"
    );
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {target}\r\nx-reef-scenario: bench\r\ncontent-type: application/json\r\n\
         authorization: Bearer {}\r\ncontent-length: {}\r\n\r\n{body}",
        args.text("token", "none"),
        body.len()
    );
    let start = Instant::now();
    let plan = Arc::new(Plan {
        target,
        request: request.into_bytes(),
        streaming,
        warm_until: start + Duration::from_secs_f64(warm),
        until: start + Duration::from_secs_f64(warm + seconds),
        interval: (rate > 0.0).then(|| Duration::from_secs_f64(connections as f64 / rate)),
    });
    let tasks: Vec<_> = (0..connections)
        .map(|n| {
            let plan = Arc::clone(&plan);
            let offset = plan.interval.unwrap_or_default().mul_f64(n as f64 / connections as f64);
            tokio::spawn(async move { client(&plan, start + offset).await })
        })
        .collect();
    let mut all = Tally::default();
    for task in tasks {
        let tally = task.await.expect("client");
        all.latency_us.extend(tally.latency_us);
        all.first_byte_us.extend(tally.first_byte_us);
        all.chunk_delay_us.extend(tally.chunk_delay_us);
        all.requests += tally.requests;
        all.errors += tally.errors;
        all.receipts += tally.receipts;
        all.warm_requests += tally.warm_requests;
    }
    println!(
        "{{\"requests\":{},\"errors\":{},\"receipts\":{},\"warm_requests\":{},\"per_second\":{:.1},\"latency_us\":{},\"first_byte_us\":{},\"chunk_delay_us\":{}}}",
        all.requests,
        all.errors,
        all.receipts,
        all.warm_requests,
        all.requests as f64 / seconds,
        spread(&mut all.latency_us),
        spread(&mut all.first_byte_us),
        spread(&mut all.chunk_delay_us),
    );
}

fn spread(values: &mut [u32]) -> String {
    values.sort_unstable();
    let at = |share: f64| {
        let last = values.len().saturating_sub(1);
        values.get((last as f64 * share).round() as usize).copied().unwrap_or(0)
    };
    format!(
        "{{\"p50\":{},\"p95\":{},\"p99\":{},\"max\":{}}}",
        at(0.5),
        at(0.95),
        at(0.99),
        at(1.0)
    )
}

async fn client(plan: &Plan, first: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut due = first;
    'connect: while Instant::now() < plan.until {
        let Ok(mut stream) = TcpStream::connect(&plan.target).await else {
            tally.errors += 1;
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let _ok = stream.set_nodelay(true);
        let mut bytes = Vec::with_capacity(64 * 1024);
        loop {
            if let Some(interval) = plan.interval {
                tokio::time::sleep_until(due.into()).await;
                due += interval;
            } else {
                due = Instant::now();
            }
            let scheduled = due - plan.interval.unwrap_or_default();
            if Instant::now() >= plan.until {
                return tally;
            }
            let result = if plan.streaming {
                stream_once(&mut stream, plan, &mut bytes, &mut tally, scheduled).await
            } else {
                whole_once(&mut stream, plan, &mut bytes).await.map(|receipt| (receipt, None))
            };
            let Ok((receipt, first_byte)) = result else {
                tally.errors += 1;
                continue 'connect;
            };
            let warm = scheduled < plan.warm_until;
            tally.receipts += u64::from(receipt);
            if warm {
                tally.warm_requests += 1;
                continue;
            }
            tally.requests += 1;
            tally.latency_us.push(us(scheduled.elapsed()));
            if let Some(first_byte) = first_byte {
                tally.first_byte_us.push(us(first_byte));
            }
        }
    }
    tally
}

fn us(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

async fn read_head(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> std::io::Result<usize> {
    loop {
        if let Some(end) = head_end(bytes) {
            if !bytes.starts_with(b"HTTP/1.1 200") {
                return Err(std::io::Error::other(String::from_utf8_lossy(bytes).into_owned()));
            }
            return Ok(end);
        }
        if stream.read_buf(bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// One whole answer; whether it brought a receipt.
async fn whole_once(stream: &mut TcpStream, plan: &Plan, bytes: &mut Vec<u8>) -> std::io::Result<bool> {
    stream.write_all(&plan.request).await?;
    bytes.clear();
    let head = read_head(stream, bytes).await?;
    let receipt = header(&bytes[..head], "x-reef-agent-record-id").is_some();
    let length: usize = header(&bytes[..head], "content-length")
        .and_then(|v| v.parse().ok())
        .ok_or_else(|| std::io::Error::other("no length"))?;
    while bytes.len() < head + length {
        if stream.read_buf(bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(receipt)
}

/// One stream, to its last chunk; the delay of each piece from the moment the mock wrote it.
async fn stream_once(
    stream: &mut TcpStream,
    plan: &Plan,
    bytes: &mut Vec<u8>,
    tally: &mut Tally,
    scheduled: Instant,
) -> std::io::Result<(bool, Option<Duration>)> {
    stream.write_all(&plan.request).await?;
    bytes.clear();
    let head = read_head(stream, bytes).await?;
    bytes.drain(..head);
    let mut first = None;
    let mut receipt = false;
    let mut seen = 0;
    loop {
        let now = now_ns();
        if first.is_none() && !bytes.is_empty() {
            first = Some(scheduled.elapsed());
        }
        while let Some(at) = find(&bytes[seen..], b"\"sent_ns\":").filter(|at| bytes.len() >= seen + at + 30) {
            let digits = &bytes[seen + at + 10..seen + at + 30];
            let sent: u64 = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok()).unwrap_or(now);
            tally.chunk_delay_us.push(u32::try_from(now.saturating_sub(sent) / 1000).unwrap_or(u32::MAX));
            seen += at + 30;
        }
        receipt |= find(&bytes[seen..], b"agent_record_id").is_some();
        if bytes.ends_with(b"0\r\n\r\n") {
            return Ok((receipt, first));
        }
        if stream.read_buf(bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
