//! Ceilings, as a client meets them.

use super::lab::{Lab, ceilings, parsed, rest};
use fumehood_model::egress::Rule;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[test]
fn bytes_connections_and_requests_end() {
    let change = |egress: &mut fumehood_model::egress::Egress| {
        egress.rules = parsed(&["*.example.com:7000"], Rule::parse);
        egress.ceilings =
            ceilings(&["bytes-out@bytes.example.com=1000", "connections@few.example.com=1", "requests=3"]);
    };
    Lab::with(change, async |lab| {
        for name in ["bytes.example.com", "few.example.com"] {
            lab.world.name(name, &["203.0.113.7"]);
        }
        lab.world.echo("203.0.113.7:7000", "").await;
        let mut client = lab.dial_name("bytes.example.com", 7000).await;
        client.write_all(&[0; 1000]).await.unwrap();
        client.read_exact(&mut [0; 1000]).await.unwrap();
        client.write_all(&[0; 1]).await.unwrap();
        assert_eq!(rest(&mut client).await, (Vec::new(), true));

        let mut first = lab.dial_name("few.example.com", 7000).await;
        first.write_all(&[0; 3]).await.unwrap();
        first.read_exact(&mut [0; 3]).await.unwrap();
        assert!(rest(&mut lab.dial_name("few.example.com", 7000).await).await.1);
        first.shutdown().await.unwrap();
        rest(&mut first).await;
        lab.lines(4).await;
        tokio::task::yield_now().await;

        let mut third = lab.dial_name("few.example.com", 7000).await;
        third.write_all(&[0; 3]).await.unwrap();
        third.read_exact(&mut [0; 3]).await.unwrap();
        drop(third);
        while lab.story().iter().filter(|line| line.contains("ended")).count() < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        assert!(rest(&mut lab.dial_name("few.example.com", 7000).await).await.1);
        lab.gate.last_words().await;
        let denied = lab.denied();
        assert_eq!(denied.iter().filter(|(_, reason)| reason == "ceiling").count(), 3, "{:?}", lab.story());
    });
}
