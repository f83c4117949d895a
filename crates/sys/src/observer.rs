//! Seeing what the kernel refuses: a packet socket behind a filter that lets through first packets alone.
//!
//! **Invariant:** what is read here is a guest's bytes. Reading them is total.

use crate::raw::{fd, syscall};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The most of a packet that is kept: both headers, with every option.
pub(crate) const KEPT_BYTES: u32 = 128;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
}

/// One attempt to reach somebody who does not listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub protocol: Protocol,
    pub to: SocketAddr,
}

/// `struct sock_filter`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    value: u32,
}

/// Which TCP ports are listened to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard<'a> {
    Ports(&'a [u16]),
    Every,
}

const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE_AT: u16 = 0x50;
const LOAD_HALF_AT: u16 = 0x48;
const INDEX: u16 = 0x01;
/// Four times the low half of a byte: the length of an IPv4 header.
const INDEX_HEADER: u16 = 0xb1;
const SHIFT: u16 = 0x74;
const AND: u16 = 0x54;
const EQUAL: u16 = 0x15;
const ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const NAMES: u16 = 53;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

// === impl Instruction ===

impl Instruction {
    const fn new(code: u16, value: u32) -> Self {
        Self { code, yes: 0, no: 0, value }
    }

    const fn jump(code: u16, value: u32, yes: u8, no: u8) -> Self {
        Self { code, yes, no, value }
    }
}

/// The filter: first TCP packets to a port that nobody listens to, and UDP to any but names. At `place`
/// somebody listens too. It sees a packet from its IP header on.
pub(crate) fn filter(heard: Heard<'_>, place: SocketAddrV4) -> Vec<Instruction> {
    let udp = [
        Instruction::new(LOAD_HALF_AT, 2),
        Instruction::jump(EQUAL, u32::from(NAMES), 0, 1),
        Instruction::new(RETURN, 0),
        Instruction::new(RETURN, KEPT_BYTES),
    ];
    // From the protocol in the accumulator and the header's length in the index.
    let transport = [
        Instruction::jump(EQUAL, u32::from(UDP), 0, udp.len() as u8),
        udp[0],
        udp[1],
        udp[2],
        udp[3],
        Instruction::jump(EQUAL, u32::from(TCP), 1, 0),
        Instruction::new(RETURN, 0),
    ];
    let with = |tcp| -> Vec<_> { transport.into_iter().chain(tcp).collect() };
    let version_4 = [
        Instruction::new(LOAD_HALF, 6),
        Instruction::jump(ANY_BIT, 0x1fff, 0, 1),
        Instruction::new(RETURN, 0),
        Instruction::new(INDEX_HEADER, 0),
        Instruction::new(LOAD_BYTE, 9),
    ];
    let version_6 = [
        Instruction::new(INDEX, 40),
        Instruction::new(LOAD_BYTE, 6),
        Instruction::jump(EQUAL, u32::from(FRAGMENT), 0, 5),
        Instruction::new(LOAD_HALF, 42),
        Instruction::jump(ANY_BIT, 0xfff8, 0, 1),
        Instruction::new(RETURN, 0),
        Instruction::new(INDEX, 48),
        Instruction::new(LOAD_BYTE, 40),
    ];
    let mut program = vec![
        Instruction::new(LOAD_BYTE, 0),
        Instruction::new(SHIFT, 4),
        Instruction::jump(EQUAL, 6, 0, (version_6.len() + with(tcp(heard, None)).len()) as u8),
    ];
    program.extend(version_6);
    program.extend(with(tcp(heard, None)));
    program.extend([Instruction::jump(EQUAL, 4, 1, 0), Instruction::new(RETURN, 0)]);
    program.extend(version_4);
    program.extend(with(tcp(heard, Some(place))));
    program
}

fn tcp(heard: Heard<'_>, place: Option<SocketAddrV4>) -> Vec<Instruction> {
    let Heard::Ports(ports) = heard else { return vec![Instruction::new(RETURN, 0)] };
    let mut program = vec![
        Instruction::new(LOAD_BYTE_AT, 13),
        Instruction::new(AND, u32::from(SYN | ACK)),
        Instruction::jump(EQUAL, u32::from(SYN), 1, 0),
        Instruction::new(RETURN, 0),
        Instruction::new(LOAD_HALF_AT, 2),
    ];
    if let Some(place) = place {
        program.extend([
            Instruction::jump(EQUAL, u32::from(place.port()), 0, 4),
            Instruction::new(LOAD_WORD, 16),
            Instruction::jump(EQUAL, u32::from(*place.ip()), 0, 1),
            Instruction::new(RETURN, 0),
            Instruction::new(LOAD_HALF_AT, 2),
        ]);
    }
    for (at, port) in ports.iter().enumerate() {
        // Over the comparisons that are left, and over the verdict that lets through.
        let over = (ports.len() - at) as u8;
        program.push(Instruction::jump(EQUAL, u32::from(*port), over, 0));
    }
    program.extend([Instruction::new(RETURN, KEPT_BYTES), Instruction::new(RETURN, 0)]);
    program
}

/// What a packet of the observer says, from its IP header on. `None` for anything that is not whole.
#[must_use]
pub fn attempt(packet: &[u8]) -> Option<Attempt> {
    let (protocol, address, transport) = match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet.first()? & 0xf) * 4;
            let address: [u8; 4] = *packet.get(16..)?.first_chunk()?;
            (*packet.get(9)?, IpAddr::V4(Ipv4Addr::from(address)), packet.get(header.max(20)..)?)
        }
        6 => {
            let address: [u8; 16] = *packet.get(24..)?.first_chunk()?;
            let address = IpAddr::V6(Ipv6Addr::from(address));
            match *packet.get(6)? {
                FRAGMENT => (*packet.get(40)?, address, packet.get(48..)?),
                protocol => (protocol, address, packet.get(40..)?),
            }
        }
        _ => return None,
    };
    let port = u16::from_be_bytes(*transport.get(2..)?.first_chunk()?);
    let protocol = match protocol {
        TCP => Protocol::Tcp,
        UDP => Protocol::Udp,
        _ => return None,
    };
    Some(Attempt { protocol, to: SocketAddr::new(address, port) })
}

/// How many packets were seen and not kept, for want of room, since this was last asked.
///
/// # Errors
/// `InvalidInput` for what is no packet socket.
pub fn lost(observer: BorrowedFd<'_>) -> io::Result<u32> {
    /// `PACKET_STATISTICS`: `struct tpacket_stats`, packets and drops.
    const STATISTICS: i32 = 6;
    let mut counts = [0_u32; 2];
    let mut length = size_of_val(&counts) as libc::socklen_t;
    let words = [
        fd(observer.as_raw_fd()),
        libc::SOL_PACKET as usize,
        STATISTICS as usize,
        counts.as_mut_ptr() as usize,
        (&raw mut length) as usize,
        0,
    ];
    // SAFETY: `counts` has room for `length` bytes.
    unsafe { syscall(libc::SYS_getsockopt, words) }?;
    Ok(counts[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 3128);

    /// What the kernel would do: bytes kept.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut at, mut accumulator, mut index) = (0_usize, 0_u32, 0_usize);
        loop {
            let instruction = program[at];
            at += 1;
            let value = instruction.value as usize;
            let byte = |place: usize| packet.get(place).map(|byte| u32::from(*byte));
            let half = |place: usize| Some(byte(place)? << 8 | byte(place + 1)?);
            let jump = |yes: bool| usize::from(if yes { instruction.yes } else { instruction.no });
            let loaded = match instruction.code {
                LOAD_WORD => half(value).zip(half(value + 2)).map(|(high, low)| high << 16 | low),
                LOAD_BYTE => byte(value),
                LOAD_HALF => half(value),
                LOAD_BYTE_AT => byte(index + value),
                LOAD_HALF_AT => half(index + value),
                INDEX | INDEX_HEADER => {
                    index = if instruction.code == INDEX { value } else { (packet[0] & 15) as usize * 4 };
                    Some(accumulator)
                }
                SHIFT => Some(accumulator >> value),
                AND => Some(accumulator & instruction.value),
                EQUAL => {
                    at += jump(accumulator == instruction.value);
                    Some(accumulator)
                }
                ANY_BIT => {
                    at += jump(accumulator & instruction.value != 0);
                    Some(accumulator)
                }
                RETURN => return instruction.value,
                other => panic!("code {other:#x}"),
            };
            // A load beyond the end drops the packet.
            let Some(loaded) = loaded else { return 0 };
            accumulator = loaded;
        }
    }

    fn packet(to: SocketAddr, protocol: u8, flags: u8, options: usize) -> Vec<u8> {
        let mut packet = match to.ip() {
            IpAddr::V4(address) => {
                let mut head = vec![0; 20 + options];
                head[0] = 0x45 + (options / 4) as u8;
                head[9] = protocol;
                head[16..20].copy_from_slice(&address.octets());
                head
            }
            IpAddr::V6(address) => {
                let mut head = vec![0; 40];
                (head[0], head[6]) = (0x60, protocol);
                head[24..40].copy_from_slice(&address.octets());
                head
            }
        };
        let mut transport = [0; 20];
        transport[2..4].copy_from_slice(&to.port().to_be_bytes());
        transport[13] = flags;
        packet.extend(transport);
        packet
    }

    #[test]
    fn first_packets_to_nobody_are_seen_and_told() {
        let program = filter(Heard::Ports(&[443, 22, 53]), PLACE);
        assert!(program.len() < 4096);
        for host in ["203.0.113.7", "2001:db8::7"] {
            let host: IpAddr = host.parse().unwrap();
            for (port, protocol, flags, seen) in [
                (443, TCP, SYN, false),
                (22, TCP, SYN, false),
                (53, TCP, SYN, false),
                (80, TCP, SYN, true),
                (80, TCP, SYN | ACK, false),
                (80, TCP, ACK, false),
                (80, TCP, SYN | 0x40, true),
                (443, UDP, 0, true),
                (53, UDP, 0, false),
                (80, 1, SYN, false),
                (80, 58, SYN, false),
            ] {
                let to = SocketAddr::new(host, port);
                for options in [0, 8] {
                    let packet = packet(to, protocol, flags, options);
                    let kept = run(&program, &packet);
                    assert_eq!(kept, if seen { KEPT_BYTES } else { 0 }, "{to} {protocol} {flags}");
                    if seen {
                        let protocol = if protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
                        assert_eq!(attempt(&packet), Some(Attempt { protocol, to }));
                    }
                }
            }
        }
    }

    #[test]
    fn one_place_is_heard_at_its_address_alone() {
        let program = filter(Heard::Ports(&[443]), PLACE);
        for (to, seen) in [
            ("198.18.0.1:3128", false),
            ("198.18.0.1:3129", true),
            ("198.18.0.2:3128", true),
            ("[2001:db8::7]:3128", true),
            ("198.18.0.2:443", false),
        ] {
            assert_eq!(run(&program, &packet(to.parse().unwrap(), TCP, SYN, 0)) > 0, seen, "{to}");
        }
    }

    #[test]
    fn where_every_port_is_heard_only_datagrams_are_seen() {
        let program = filter(Heard::Every, PLACE);
        let to = "203.0.113.7:80".parse().unwrap();
        assert_eq!(run(&program, &packet(to, TCP, SYN, 0)), 0);
        assert_eq!(run(&program, &packet(to, UDP, 0, 0)), KEPT_BYTES);
    }

    #[test]
    fn of_a_datagram_in_pieces_the_first_is_seen() {
        let program = filter(Heard::Every, PLACE);
        let to: SocketAddr = "[2001:db8::7]:443".parse().unwrap();
        let mut whole = packet(to, FRAGMENT, 0, 0);
        whole.splice(40..40, [UDP, 0, 0, 1, 0, 0, 0, 9]);
        assert_eq!(run(&program, &whole), KEPT_BYTES);
        assert_eq!(attempt(&whole), Some(Attempt { protocol: Protocol::Udp, to }));
        whole[43] = 8;
        assert_eq!(run(&program, &whole), 0);
        let mut whole = packet("203.0.113.7:443".parse().unwrap(), UDP, 0, 0);
        whole[7] = 1;
        assert_eq!(run(&program, &whole), 0);
    }

    #[test]
    fn the_longest_list_still_jumps_where_it_should() {
        let ports: Vec<u16> = (1000..1066).collect();
        let program = filter(Heard::Ports(&ports), PLACE);
        for (port, seen) in [(999, true), (1000, false), (1065, false), (1066, true)] {
            let to = SocketAddr::new("2001:db8::1".parse().unwrap(), port);
            assert_eq!(run(&program, &packet(to, TCP, SYN, 0)) > 0, seen, "{port}");
        }
    }

    #[test]
    fn any_bytes_are_read() {
        for length in 0..64 {
            for byte in [0, 0x45, 0x4f, 0x60, 0x2c, 0xff] {
                let _ = attempt(&vec![byte; length]);
            }
        }
    }
}
