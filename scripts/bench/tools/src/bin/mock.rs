//! A mock provider that costs as little as it can: whole chat completions of a given size, or streams of chunks.

use std::sync::Arc;
use std::time::Duration;

use reef_bench_tools::{Args, head_end, header, now_ns};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Plan {
    whole: Vec<u8>,
    chunks: u64,
    interval: Duration,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args = Args::read();
    let listener = TcpListener::bind(args.text("listen", "127.0.0.1:0")).await.expect("bind");
    println!("{}", listener.local_addr().expect("address"));
    let size = args.number("answer-bytes", 1024.0) as usize;
    let frame = |content: &str| {
        format!(
            "{{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"mock\",\
             \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{content}\"}},\
             \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":20,\"completion_tokens\":200,\"total_tokens\":220}}}}"
        )
    };
    let text: String = "The quick brown fox jumps over the lazy dog, again and again. ".chars().cycle().take(size.saturating_sub(frame("").len())).collect();
    let body = frame(&text);
    let plan = Arc::new(Plan {
        whole: format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .into_bytes(),
        chunks: args.number("chunks", 100.0) as u64,
        interval: Duration::from_micros(args.number("interval-us", 0.0) as u64),
    });
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let plan = Arc::clone(&plan);
        tokio::spawn(async move {
            let _ended = serve(stream, &plan).await;
        });
    }
}

async fn serve(mut stream: TcpStream, plan: &Plan) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::with_capacity(16 * 1024);
    loop {
        let head = loop {
            if let Some(end) = head_end(&bytes) {
                break end;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let length: usize = header(&bytes[..head], "content-length").and_then(|v| v.parse().ok()).unwrap_or(0);
        while bytes.len() < head + length {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        }
        // The generator puts the flag first, so a glance is enough.
        let streaming = bytes[head..].starts_with(b"{\"stream\":true");
        bytes.drain(..head + length);
        if streaming {
            send_stream(&mut stream, plan).await?;
        } else {
            stream.write_all(&plan.whole).await?;
        }
    }
}

async fn send_stream(stream: &mut TcpStream, plan: &Plan) -> std::io::Result<()> {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        .await?;
    for n in 0..plan.chunks {
        let event = format!(
            "data: {{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"word \"}},\"finish_reason\":null}}],\"sent_ns\":{:020}}}\n\n",
            now_ns()
        );
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
        if !plan.interval.is_zero() && n + 1 < plan.chunks {
            tokio::time::sleep(plan.interval).await;
        }
    }
    let end = "data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\
               \"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    stream.write_all(format!("{:x}\r\n{end}\r\n0\r\n\r\n", end.len()).as_bytes()).await
}
