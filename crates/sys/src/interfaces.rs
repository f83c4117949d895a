//! The addresses of this machine, in the network namespace of the caller.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::NonNull;

/// The kernel's list, freed when it goes.
struct List(*mut libc::ifaddrs);

/// Every address that an interface has, IPv4 and IPv6, in no order.
///
/// # Errors
/// Out of memory or descriptors.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` has room for the answer, which `List` frees.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let list = List(head);
    let mut found = Vec::new();
    let mut next = NonNull::new(list.0);
    while let Some(entry) = next {
        // SAFETY: the list is whole and alive until `list` is dropped.
        let entry = unsafe { entry.as_ref() };
        found.extend(NonNull::new(entry.ifa_addr).and_then(address));
        next = NonNull::new(entry.ifa_next);
    }
    Ok(found)
}

fn address(address: NonNull<libc::sockaddr>) -> Option<IpAddr> {
    // SAFETY: every entry of the list that has an address has a whole one of its family.
    match i32::from(unsafe { address.as_ref() }.sa_family) {
        libc::AF_INET => {
            // SAFETY: the family says which structure stands there; the list aligns it.
            let whole = unsafe { address.cast::<libc::sockaddr_in>().as_ref() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(whole.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let whole = unsafe { address.cast::<libc::sockaddr_in6>().as_ref() };
            Some(IpAddr::V6(Ipv6Addr::from(whole.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

// === impl List ===

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it was made by `getifaddrs` and is freed once.
        unsafe { libc::freeifaddrs(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_among_them() {
        assert!(addresses().unwrap().iter().any(IpAddr::is_loopback));
    }
}
