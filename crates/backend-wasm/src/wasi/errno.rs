//! The error numbers of WASI preview 1.

use rustix::io::Errno as Kernel;

/// An error as a module sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) u16);

impl Errno {
    pub(crate) const BADF: Self = Self(8);
    pub(crate) const FAULT: Self = Self(21);
    pub(crate) const INVAL: Self = Self(28);
    pub(crate) const IO: Self = Self(29);
    pub(crate) const ISDIR: Self = Self(31);
    pub(crate) const LOOP: Self = Self(32);
    pub(crate) const MFILE: Self = Self(33);
    pub(crate) const NAMETOOLONG: Self = Self(37);
    pub(crate) const NOENT: Self = Self(44);
    pub(crate) const NOSYS: Self = Self(52);
    pub(crate) const NOTDIR: Self = Self(54);
    pub(crate) const NOTSOCK: Self = Self(57);
    pub(crate) const OVERFLOW: Self = Self(61);
    /// A path that would lead out of the folder that it starts in.
    pub(crate) const NOTCAPABLE: Self = Self(76);
}

/// Pairs of the kernel's number and WASI's. What is not here is [`Errno::IO`].
const NUMBERS: &[(Kernel, u16)] = &[
    (Kernel::TOOBIG, 1),
    (Kernel::ACCESS, 2),
    (Kernel::AGAIN, 6),
    (Kernel::BADF, 8),
    (Kernel::BUSY, 10),
    (Kernel::EXIST, 20),
    (Kernel::FAULT, 21),
    (Kernel::FBIG, 22),
    (Kernel::INTR, 27),
    (Kernel::INVAL, 28),
    (Kernel::ISDIR, 31),
    (Kernel::LOOP, 32),
    (Kernel::MFILE, 33),
    (Kernel::MLINK, 34),
    (Kernel::NAMETOOLONG, 37),
    (Kernel::NFILE, 41),
    (Kernel::NODEV, 43),
    (Kernel::NOENT, 44),
    (Kernel::NOMEM, 48),
    (Kernel::NOSPC, 51),
    (Kernel::NOSYS, 52),
    (Kernel::NOTDIR, 54),
    (Kernel::NOTEMPTY, 55),
    (Kernel::OPNOTSUPP, 58),
    (Kernel::NXIO, 60),
    (Kernel::OVERFLOW, 61),
    (Kernel::PERM, 63),
    (Kernel::PIPE, 64),
    (Kernel::RANGE, 68),
    (Kernel::ROFS, 69),
    (Kernel::SPIPE, 70),
    (Kernel::TXTBSY, 74),
    (Kernel::XDEV, 75),
    (Kernel::DQUOT, 19),
];

impl From<Kernel> for Errno {
    fn from(kernel: Kernel) -> Self {
        NUMBERS.iter().find(|(known, _)| *known == kernel).map_or(Self::IO, |(_, number)| Self(*number))
    }
}
