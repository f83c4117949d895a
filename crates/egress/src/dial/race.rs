//! Several addresses of one server: tried one after the other, each with a head start.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// The head start of an address over the next: long enough for most of the world, and not felt.
const HEAD_START: Duration = Duration::from_millis(250);
/// More addresses are not tried.
const MOST_ADDRESSES: usize = 8;

/// The first connection that comes about, and to whom. The two versions of IP take turns.
pub(super) async fn race<T, F: Future<Output = io::Result<T>> + Unpin>(
    to: &[IpAddr],
    connect: impl Fn(IpAddr) -> F,
) -> io::Result<(T, IpAddr)> {
    let mut left = in_turns(to).into_iter().take(MOST_ADDRESSES);
    let mut running = Running(Vec::new());
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        match left.next() {
            Some(address) => running.0.push((connect(address), address)),
            None if running.0.is_empty() => return Err(last),
            None => {}
        }
        let deadline = Instant::now() + HEAD_START;
        // Without another address there is nothing to start, whatever the time.
        while !running.0.is_empty() {
            let first = if left.len() == 0 {
                Some((&mut running).await)
            } else {
                tokio::time::timeout_at(deadline, &mut running).await.ok()
            };
            match first {
                Some((Ok(stream), address)) => return Ok((stream, address)),
                // The next one need not wait.
                Some((Err(error), _)) => {
                    last = error;
                    if left.len() > 0 {
                        break;
                    }
                }
                None => break,
            }
        }
    }
}

/// Attempts that are going on; gives the first that ends, whichever way.
struct Running<F>(Vec<(F, IpAddr)>);

impl<T, F: Future<Output = io::Result<T>> + Unpin> Future for Running<F> {
    type Output = (io::Result<T>, IpAddr);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let attempts = &mut self.get_mut().0;
        let ended = attempts.iter_mut().enumerate().find_map(|(place, (attempt, _))| {
            match Pin::new(attempt).poll(context) {
                Poll::Ready(result) => Some((place, result)),
                Poll::Pending => None,
            }
        });
        match ended {
            Some((place, result)) => Poll::Ready((result, attempts.remove(place).1)),
            None => Poll::Pending,
        }
    }
}

/// IPv6 first, then one of each.
fn in_turns(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let (mut v6, mut v4) =
        (addresses.iter().filter(|one| one.is_ipv6()), addresses.iter().filter(|one| one.is_ipv4()));
    let mut turns = Vec::with_capacity(addresses.len());
    loop {
        let before = turns.len();
        turns.extend(v6.next());
        turns.extend(v4.next());
        if turns.len() == before {
            return turns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// Runs a race in which each address answers after some time, by a clock that jumps.
    fn run(list: &[(&str, u64, bool)]) -> (io::Result<IpAddr>, Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let to = addresses(&list.iter().map(|(text, ..)| *text).collect::<Vec<_>>());
        let connect = |address: IpAddr| {
            let (_, after_ms, good) = *list.iter().find(|(text, ..)| *text == address.to_string()).unwrap();
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                if good { Ok(()) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
            })
        };
        runtime.unwrap().block_on(async {
            let start = Instant::now();
            let result = race(&to, connect).await.map(|((), address)| address);
            (result, start.elapsed())
        })
    }

    #[test]
    fn versions_take_turns() {
        let mixed = addresses(&["203.0.113.1", "203.0.113.2", "2001:db8::1"]);
        assert_eq!(in_turns(&mixed), addresses(&["2001:db8::1", "203.0.113.1", "203.0.113.2"]));
    }

    #[test]
    fn the_first_that_comes_about_wins() {
        let (won, after) = run(&[("2001:db8::1", 10_000, true), ("203.0.113.1", 5, true)]);
        assert_eq!(won.unwrap().to_string(), "203.0.113.1");
        assert!(after < Duration::from_millis(300), "{after:?}");
    }

    #[test]
    fn a_refusal_starts_the_next_at_once() {
        let (won, after) =
            run(&[("2001:db8::1", 1, false), ("203.0.113.1", 1, false), ("203.0.113.2", 1, true)]);
        assert_eq!(won.unwrap().to_string(), "203.0.113.2");
        assert!(after < Duration::from_millis(50), "{after:?}");
    }

    #[test]
    fn a_late_first_still_counts() {
        let (won, _) = run(&[("2001:db8::1", 400, true), ("203.0.113.1", 1000, true)]);
        assert_eq!(won.unwrap().to_string(), "2001:db8::1");
    }

    #[test]
    fn nobody_is_an_error_with_the_last_cause() {
        let (won, _) = run(&[("2001:db8::1", 400, false), ("203.0.113.1", 1, false)]);
        assert_eq!(won.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert!(run(&[]).0.is_err());
    }
}
