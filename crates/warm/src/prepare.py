# Runs inside a sandbox: prepares an interpreter, and writes what it is then as an image to standard output, which is a
# file. Arguments: the preparation's source, and the name that it has in tracebacks.
#
# The image is made of a fork of the interpreter, so it has one thread, and every library was told that it is another
# process now. That one waits in `CHECKPOINT`, where nothing of its memory changes any more, and is read by this one.
# Whoever goes on with the image, in this sandbox or in another one, returns from there.

import ctypes
import gc
import mmap
import os
import struct
import sys
import threading

PAGE = 4096
# The image's layout; `restore/main.rs` has the other side of it.
TABLE_AT = 0x10000
DATA_AT = 0x40000
MAGIC = 0x314D524157484601
EMPTY = (1 << 64) - 1
# Arguments and variables fit there, as far as a command can have any.
MAILBOX_BYTES = 5 << 20
# Process numbers below this are used up first: what remembers one takes no later process for the old one.
LOWEST_PID = 400
# Pushes what a function keeps, notes the stack, says so, and waits for a byte: 0. Entered at `RESUME`: 1.
CHECKPOINT = bytes.fromhex(
    "535541544155415641574889274889fb48c74710010000008b7b18488d7320ba0100000031c00f0531c0eb0c"
    "488ba700f0ffffb801000000415f415e415d415c5d5bc3"
)
RESUME = 0x2C
SIGNALS = 64


def refuse(why):
    sys.stdout = sys.__stdout__ = None
    sys.stderr.write("not prepared: " + why + "\n")
    sys.stderr.flush()
    os._exit(3)


def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink("/proc/self/fd/" + number)
        except OSError:
            pass  # That of the list itself.
    return found


def run(source, name):
    import __main__

    before = descriptors()
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        refuse("the preparation can not be read: %s" % error)
    try:
        exec(code, __main__.__dict__)
    except SystemExit as error:
        refuse("the preparation ended by itself (%r)" % (error.code,))
    except BaseException as error:
        trace = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(trace and trace.tb_next), trace and trace.tb_next)
        os._exit(1)
    sys.stderr.flush()
    if threading.active_count() > 1:
        names = ", ".join(thread.name for thread in threading.enumerate()[1:])
        refuse("it left threads running, which can not go on elsewhere: " + names)
    names = [name for number, name in descriptors().items() if number not in before]
    if names:
        refuse("it left files open, which can not go along: " + ", ".join(names))


class Machine:
    """What is asked of the kernel and the C library, and the memory that both sides know."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.syscall.restype = ctypes.c_long
        self.libc.sbrk.restype = ctypes.c_void_p
        self.box = mmap.mmap(-1, PAGE + MAILBOX_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self.box))
        every = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        self.code = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=every)
        self.code[: len(CHECKPOINT)] = CHECKPOINT
        self.code_at = ctypes.addressof(ctypes.c_char.from_buffer(self.code))
        self.checkpoint = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(self.code_at)
        self.rseq = self.restartable()

    def restartable(self):
        try:
            offset = ctypes.c_ssize_t.in_dll(self.libc, "__rseq_offset").value
            size = ctypes.c_uint.in_dll(self.libc, "__rseq_size").value
        except ValueError:
            return None
        # The library says less than it told the kernel, for which 32 was the least.
        return (offset, max(size, 32)) if size else None

    def ask(self, number, *words):
        if self.libc.syscall(number, *[ctypes.c_void_p(word) for word in words]) < 0:
            why = os.strerror(ctypes.get_errno())
            refuse("the kernel does not tell what has to be known (call %d: %s)" % (number, why))

    def word(self, place):
        return struct.unpack_from("<Q", self.box, place)[0]

    def facts(self, pipe):
        """What only the process itself can tell, into the box."""
        struct.pack_into("<Qi", self.box, 16, 0, pipe)
        self.ask(158, 0x1003, self.at + 8)  # arch_prctl, ARCH_GET_FS
        self.ask(157, 40, self.at + 64, 0, 0, 0)  # prctl, PR_GET_TID_ADDRESS
        self.ask(274, 0, self.at + 72, self.at + 80)  # get_robust_list
        self.ask(14, 0, 0, self.at + 88, 8)  # rt_sigprocmask
        struct.pack_into("<Q", self.box, 96, self.libc.sbrk(0))
        if self.rseq:
            struct.pack_into("<QQ", self.box, 104, self.word(8) + self.rseq[0], self.rseq[1])
        for signal in range(1, SIGNALS + 1):
            self.ask(13, signal, 0, self.at + 512 + (signal - 1) * 32, 8)  # rt_sigaction


class Image:
    """Reads the process that waits, and writes the image."""

    def __init__(self, pid, machine):
        self.pid = pid
        self.machine = machine
        self.memory = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
        self.offset = DATA_AT
        self.zero = bytes(PAGE)

    def word(self, place):
        return struct.unpack("<Q", os.pread(self.memory, 8, self.machine.at + place))[0]

    def mappings(self):
        with open("/proc/%d/maps" % self.pid) as lines:
            for line in lines:
                fields = line.split(None, 5)
                start, end = (int(part, 16) for part in fields[0].split("-"))
                name = fields[5].strip() if len(fields) > 5 else ""
                yield start, end, fields[1], name

    def content(self, start, end):
        """Writes what is not zero; says whether there was anything."""
        found = False
        step = 1 << 20
        for at in range(start, end, step):
            block = os.pread(self.memory, min(step, end - at), at)
            if len(block) != min(step, end - at):
                refuse("its memory at %x can not be read" % at)
            if block.count(0) == len(block):
                continue
            found = True
            begin = None
            for place in range(0, len(block) + PAGE, PAGE):
                page = block[place : place + PAGE]
                if page and page != self.zero:
                    begin = place if begin is None else begin
                elif begin is not None:
                    os.pwrite(1, block[begin:place], self.offset + at - start + begin)
                    begin = None
        return found

    def entries(self):
        specials, entries, last = [], [], 0
        for start, end, rights, name in self.mappings():
            if name == "[vsyscall]":
                continue
            if name.startswith("[v"):
                specials.append((name, start, end))
                continue
            if rights[3] == "s" and rights[1] == "w":
                refuse("it shares memory with other processes (%s)" % (name or "anonymous"))
            if name == "[stack]":
                # As far as it may grow: nothing makes it grow by itself any more.
                floor = max(last + (1 << 20), end - (8 << 20))
                if floor < start:
                    entries.append([floor, start, 3, EMPTY])
            bits = sum(bit for bit, letter in zip((1, 2, 4), "rwx") if letter in rights)
            offset = EMPTY
            if bits and self.content(start, end):
                offset = self.offset
                self.offset += end - start
            before = entries[-1] if entries else None
            if before and before[1:3] == [start, bits] and (before[3] == EMPTY) == (offset == EMPTY):
                before[1] = end
            else:
                entries.append([start, end, bits, offset])
            last = end
        return specials, entries

    def layout(self):
        with open("/proc/%d/stat" % self.pid) as stat:
            fields = stat.read().rpartition(")")[2].split()
        field = lambda number: int(fields[number - 3])
        numbers = [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51]
        return [field(number) if number else self.word(96) for number in numbers]

    def write(self):
        specials, entries = self.entries()
        codes = [start for name, start, _ in specials if name == "[vdso]"]
        vdso = codes[0] if codes else 0
        head = [MAGIC, len(entries), len(specials), self.machine.at + PAGE, MAILBOX_BYTES]
        head += [self.machine.code_at + RESUME, self.word(8), self.word(64), self.word(72), self.word(80)]
        head += [self.word(104), self.word(112), self.word(88)] + self.layout() + [vdso]
        words = head
        for _, start, end in specials:
            words += [(start - vdso) % (1 << 64), end - start]
        table = struct.pack("<%dQ" % len(words), *words)
        table += os.pread(self.memory, SIGNALS * 32, self.machine.at + 512)
        table += b"".join(struct.pack("<4Q", *entry) for entry in entries)
        if len(table) > DATA_AT - TABLE_AT:
            refuse("its memory has too many parts (%d)" % len(entries))
        os.pwrite(1, table, TABLE_AT)
        # The last pages may be holes.
        if os.fstat(1).st_size < self.offset:
            os.ftruncate(1, self.offset)


def prepare(source, name, after):
    sys.argv = [""]
    run(source, name)
    machine = Machine()
    while os.getpid() < LOWEST_PID:
        # A thread takes a number too, and less time than a process.
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        if thread.native_id >= LOWEST_PID:
            break
    pipe, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        # What its streams will be; the kind is remembered in many places.
        for number in (0, 1, 2):
            os.dup2(pipe if number == 0 else held, number)
        os.close(held)
        after.rehearse()
        gc.collect()
        gc.freeze()
        for number in (1, 2):
            os.close(number)
        machine.facts(pipe)
        if machine.checkpoint(machine.at) == 0:
            os._exit(0)
        after.wake(machine.box, PAGE)
    image = Image(pid, machine)
    while image.word(16) == 0:
        if os.waitpid(pid, os.WNOHANG)[0]:
            os._exit(3)
        os.sched_yield()
    image.write()
    os.close(held)
    os.waitpid(pid, 0)
    os._exit(0)
