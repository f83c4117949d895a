/*
 * Tries doors and says what happened. It never judges: each attempt is one line
 * `try NAME RESULT`, where RESULT is `done`, `errno NAME` or `signal N`, and the host decides.
 * Shapes only: calls are made with arguments that can do no harm where they are allowed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *argument[16];

/* Runs one attempt in a child, so that a call that kills its caller is seen as that. */
#define TRY(name, expression)                                                                      \
    do {                                                                                           \
        fflush(stdout);                                                                            \
        pid_t child_ = fork();                                                                     \
        if (child_ == 0) {                                                                         \
            errno = 0;                                                                             \
            long result_ = (long)(expression);                                                     \
            _exit(result_ == -1 ? (errno ? errno & 255 : 255) : 0);                                \
        }                                                                                          \
        report(name, child_);                                                                      \
    } while (0)

static void report(const char *name, pid_t child) {
    int status = 0;
    if (child < 0) {
        printf("try %s fork %s\n", name, strerrorname_np(errno));
        return;
    }
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status))
        printf("try %s signal %d\n", name, WTERMSIG(status));
    else if (WEXITSTATUS(status) == 0)
        printf("try %s done\n", name);
    else if (WEXITSTATUS(status) == 255)
        printf("try %s errno none\n", name);
    else
        printf("try %s errno %s\n", name, strerrorname_np(WEXITSTATUS(status)));
}

static long clone3_with(uint64_t flags) {
    struct clone_args args;
    memset(&args, 0, sizeof args);
    args.flags = flags;
    args.exit_signal = SIGCHLD;
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        _exit(0);
    return pid;
}

static long clone_with(unsigned long flags) {
    long pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return pid;
}

static void k12_namespaces(void) {
    TRY("unshare-user", unshare(CLONE_NEWUSER));
    TRY("unshare-user-mount", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    TRY("unshare-mount", unshare(CLONE_NEWNS));
    TRY("unshare-net", unshare(CLONE_NEWNET));
    TRY("unshare-pid", unshare(CLONE_NEWPID));
    TRY("unshare-ipc", unshare(CLONE_NEWIPC));
    TRY("unshare-uts", unshare(CLONE_NEWUTS));
    TRY("unshare-cgroup", unshare(CLONE_NEWCGROUP));
    TRY("clone-user", clone_with(CLONE_NEWUSER));
    TRY("clone-high-bits", clone_with(CLONE_NEWUSER | CLONE_NEWNET));
    TRY("clone3-user", clone3_with(CLONE_NEWUSER));
    TRY("clone3-all", clone3_with(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID));
    TRY("clone3-into-cgroup", clone3_with(0x200000000ULL));
}

static void k13_mounts(void) {
    mkdir("mountpoint", 0777);
    TRY("mount-tmpfs", mount("none", "mountpoint", "tmpfs", 0, 0));
    TRY("bind", mount("/proc", "mountpoint", 0, MS_BIND | MS_REC, 0));
    TRY("remount", mount(0, "/", 0, MS_REMOUNT | MS_BIND, 0));
    TRY("propagation", mount(0, "/", 0, MS_REC | MS_SHARED, 0));
    TRY("proc", mount("proc", "mountpoint", "proc", 0, 0));
    TRY("umount", umount2("/proc", MNT_DETACH));
    TRY("fsopen", syscall(SYS_fsopen, "tmpfs", 0));
    TRY("fspick", syscall(SYS_fspick, AT_FDCWD, "/", 0));
    TRY("open_tree", syscall(SYS_open_tree, AT_FDCWD, "/", 1));
    TRY("move_mount", syscall(SYS_move_mount, AT_FDCWD, "/proc", AT_FDCWD, "mountpoint", 0));
    struct { uint64_t set, clear, propagation, userns; } attributes = {0, 1, 0, 0};
    TRY("mount_setattr", syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &attributes, sizeof attributes));
    TRY("chroot", chroot("."));
    TRY("pivot_root", syscall(SYS_pivot_root, ".", "."));
    TRY("setns-own", syscall(SYS_setns, open("/proc/self/ns/net", O_RDONLY), 0));
    TRY("setns-init", syscall(SYS_setns, open("/proc/1/ns/mnt", O_RDONLY), 0));
    TRY("setns-pidfd", syscall(SYS_setns, syscall(SYS_pidfd_open, 1, 0), CLONE_NEWNS));
    TRY("open_by_handle_at", syscall(SYS_open_by_handle_at, AT_FDCWD, "\10\0\0\0\1\0\0\0\2\0\0\0\0\0\0\0", 0));
}

static void k14_uring(void) {
    char parameters[256] = {0};
    TRY("io_uring_setup", syscall(425, 4, parameters));
    TRY("io_uring_enter", syscall(426, -1, 0, 0, 0, 0, 0));
    TRY("io_uring_register", syscall(427, -1, 0, 0, 0));
}

static void k15_kernel_programs(void) {
    char attributes[128] = {0};
    *(uint32_t *)attributes = 2;           /* an array map, or a software clock event */
    *(uint32_t *)(attributes + 4) = 4;
    *(uint32_t *)(attributes + 8) = 4;
    *(uint32_t *)(attributes + 12) = 1;
    TRY("bpf-map", syscall(SYS_bpf, 0, attributes, 72));
    char event[128] = {0};
    *(uint32_t *)event = 1;
    *(uint32_t *)(event + 4) = 112;
    *(uint64_t *)(event + 8) = 1;          /* task clock */
    *(uint64_t *)(event + 40) = 1 << 5;    /* exclude kernel */
    TRY("perf-own", syscall(SYS_perf_event_open, event, 0, -1, -1, 0));
    TRY("userfaultfd", syscall(SYS_userfaultfd, 0));
    TRY("userfaultfd-user", syscall(SYS_userfaultfd, 1));
    TRY("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 0, 0, 0));
}

/* The value is left in the caller's session keyring, then the rest of the line is executed. */
static void key_plant(char **argv) {
    syscall(SYS_keyctl, 1, 0);
    if (syscall(SYS_add_key, "user", argv[0], argv[1], strlen(argv[1]), -3) < 0)
        perror("add_key");
    execvp(argv[2], argv + 2);
    perror("exec");
    _exit(125);
}

static void k16_keys(void) {
    char value[256] = {0};
    long key = syscall(SYS_request_key, "user", argument[0], 0, 0);
    if (key < 0)
        key = syscall(SYS_keyctl, 10, -3, "user", argument[0], 0);
    if (key >= 0 && syscall(SYS_keyctl, 11, key, value, sizeof value - 1) > 0)
        printf("key %s\n", value);
    TRY("request_key", syscall(SYS_request_key, "user", argument[0], 0, 0));
    TRY("add_key", syscall(SYS_add_key, "user", "planted", "x", 1, -4));
    TRY("keyctl-session", syscall(SYS_keyctl, 0, -3, 0));
    TRY("keyctl-user", syscall(SYS_keyctl, 0, -4, 1));
}

static long read_memory(pid_t pid) {
    char buffer[8];
    struct iovec here = {buffer, sizeof buffer}, there = {(void *)&argument, sizeof buffer};
    return process_vm_readv(pid, &here, 1, &there, 1, 0);
}

static void k17_other_processes(void) {
    const char *names[] = {"outside", "init"};
    pid_t pids[] = {atoi(argument[0]), 1};
    for (int i = 0; i < 2; i++) {
        char name[64];
        pid_t pid = pids[i];
#define NAMED(what) (snprintf(name, sizeof name, "%s-%s", what, names[i]), name)
        TRY(NAMED("attach"), ptrace(PTRACE_SEIZE, pid, 0, 0));
        TRY(NAMED("readv"), read_memory(pid));
        snprintf(name, sizeof name, "/proc/%d/mem", pid);
        char path[64];
        strcpy(path, name);
        TRY(NAMED("mem"), open(path, O_RDWR));
        sprintf(path, "/proc/%d/environ", pid);
        TRY(NAMED("environ"), open(path, O_RDONLY));
        TRY(NAMED("getfd"), syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, pid, 0), 0, 0));
        if (i == 0)
            TRY(NAMED("limits"), prlimit(pid, RLIMIT_NOFILE, 0, &(struct rlimit){0}));
    }
}

static void k18_signals(void) {
    pid_t pid = atoi(argument[0]);
    TRY("stop", kill(pid, SIGSTOP));
    TRY("queue", sigqueue(pid, SIGSTOP, (union sigval){0}));
    TRY("pidfd", syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, pid, 0), SIGSTOP, 0, 0));
}

static void k19_devices(void) {
    const char *devices[] = {"/dev/kvm", "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/net/tun", "/dev/vhost-net",
        "/dev/vhost-vsock", "/dev/vsock", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/loop0", "/dev/loop-control",
        "/dev/mapper/control", "/dev/rtc0", "/dev/uinput", "/dev/input/event0", "/dev/port", "/dev/hpet",
        "/dev/snapshot", "/dev/cuse", "/dev/vcs", "/dev/tty1", "/dev/ttyS0"};
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        TRY(devices[i], open(devices[i], O_RDONLY | O_NONBLOCK));
    }
    TRY("mknod-block", mknod("block", S_IFBLK | 0600, makedev(254, 0)));
    TRY("mknod-mem", mknod("memory", S_IFCHR | 0600, makedev(1, 1)));
    TRY("mknod-console", mknod("console", S_IFCHR | 0600, makedev(5, 1)));
}

static long call_path(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int handle = socket(AF_UNIX, SOCK_STREAM, 0);
    return handle < 0 ? handle : connect(handle, (void *)&address, sizeof address);
}

static long call_abstract(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path + 1, name, sizeof address.sun_path - 2);
    int handle = socket(AF_UNIX, SOCK_STREAM, 0);
    if (handle < 0)
        return handle;
    return connect(handle, (void *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
}

static void connect_all(int count) {
    for (int i = 0; i < count; i++) {
        if (argument[i][0] == '@')
            TRY("abstract", call_abstract(argument[i] + 1));
        else
            TRY(argument[i], call_path(argument[i]));
    }
}

static void k24_vsock(void) {
    TRY("vsock-stream", socket(40, SOCK_STREAM, 0));
    TRY("vsock-datagram", socket(40, SOCK_DGRAM, 0));
    TRY("vsock-packet", socket(40, SOCK_SEQPACKET, 0));
    int pair[2];
    TRY("vsock-pair", socketpair(40, SOCK_STREAM, 0, pair));
}

static void k25_families(void) {
    struct { const char *name; int family, type, protocol; } doors[] = {
        {"packet", AF_PACKET, SOCK_RAW, 0x300}, {"packet-datagram", AF_PACKET, SOCK_DGRAM, 0},
        {"netlink-usersock", AF_NETLINK, SOCK_RAW, 2}, {"netlink-diag", AF_NETLINK, SOCK_RAW, 4},
        {"netlink-xfrm", AF_NETLINK, SOCK_RAW, 6}, {"netlink-audit", AF_NETLINK, SOCK_RAW, 9},
        {"netlink-connector", AF_NETLINK, SOCK_RAW, 11}, {"netlink-netfilter", AF_NETLINK, SOCK_RAW, 12},
        {"netlink-uevent", AF_NETLINK, SOCK_RAW, 15}, {"netlink-generic", AF_NETLINK, SOCK_RAW, 16},
        {"netlink-crypto", AF_NETLINK, SOCK_RAW, 21}, {"crypto", AF_ALG, SOCK_SEQPACKET, 0},
        {"xdp", AF_XDP, SOCK_RAW, 0}, {"bluetooth", AF_BLUETOOTH, SOCK_RAW, 1}, {"can", AF_CAN, SOCK_RAW, 1},
        {"raw-icmp", AF_INET, SOCK_RAW, 1}, {"raw-ip", AF_INET, SOCK_RAW, 255}, {"raw-icmp6", AF_INET6, SOCK_RAW, 58},
        {"key", AF_KEY, SOCK_RAW, 2}, {"rds", AF_RDS, SOCK_SEQPACKET, 0}, {"tipc", AF_TIPC, SOCK_SEQPACKET, 0},
        {"nfc", AF_NFC, SOCK_SEQPACKET, 1}, {"x25", AF_X25, SOCK_SEQPACKET, 0}, {"smc", AF_SMC, SOCK_STREAM, 0},
        {"qipcrtr", AF_QIPCRTR, SOCK_DGRAM, 0}, {"kcm", AF_KCM, SOCK_DGRAM, 0}, {"sctp", AF_INET, SOCK_STREAM, 132},
        {"dccp", AF_INET, 6, 33}};
    for (size_t i = 0; i < sizeof doors / sizeof *doors; i++)
        TRY(doors[i].name, socket(doors[i].family, doors[i].type, doors[i].protocol));
}

static void k26_terminal(void) {
    char letter = 'X';
    char line[16] = {2};
    int terminal = argument[0] ? open(argument[0], O_RDWR | O_NOCTTY) : 0;
    TRY("sti", ioctl(terminal, TIOCSTI, &letter));
    TRY("linux", ioctl(terminal, TIOCLINUX, line));
    TRY("sti-high", syscall(SYS_ioctl, terminal, 0xffffffff00000000UL | TIOCSTI, &letter));
    TRY("linux-high", syscall(SYS_ioctl, terminal, 0xdeadbeef00000000UL | TIOCLINUX, line));
    int own = open("/dev/tty", O_RDWR);
    TRY("sti-own", ioctl(own, TIOCSTI, &letter));
}

static long entry_32(long number) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(0), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
    if (result < 0 && result > -4096) {
        errno = -result;
        return -1;
    }
    return result;
}

static void k27_other_entries(void) {
    TRY("int80-getpid", entry_32(20));
    TRY("int80-unshare", entry_32(310));
    TRY("x32-getpid", syscall(0x40000000 | 39));
    TRY("x32-unshare", syscall(0x40000000 | 272, 0));
}

static void k30_identity(void) {
    printf("identity %d %d %d %d\n", getuid(), geteuid(), getgid(), getegid());
    struct { uint32_t version; int pid; } header = {0x20080522, 0};
    struct { uint32_t effective, permitted, inheritable; } sets[2] = {{~0u}, {~0u}};
    syscall(SYS_capget, &header, sets);
    printf("held %x %x\n", sets[0].effective | sets[0].permitted, sets[1].effective | sets[1].permitted);
    printf("no-new-privileges %d\n", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Cap", 3) || !strncmp(line, "NoNewPrivs", 10))
            printf("%s", line);
    TRY("setuid-root", setresuid(0, 0, 0));
    TRY("setgid-root", setresgid(0, 0, 0));
    TRY("setgroups", syscall(SYS_setgroups, 0, 0));
}

static void k31_own_network(void) {
    int handle = socket(AF_INET, SOCK_DGRAM, 0);
    struct ifreq interface;
    memset(&interface, 0, sizeof interface);
    strcpy(interface.ifr_name, "lo");
    interface.ifr_mtu = 65536;
    TRY("set-mtu", ioctl(handle, SIOCSIFMTU, &interface));
    struct rtentry route;
    memset(&route, 0, sizeof route);
    struct sockaddr_in *to = (void *)&route.rt_dst, *mask = (void *)&route.rt_genmask;
    to->sin_family = mask->sin_family = AF_INET;
    to->sin_addr.s_addr = inet_addr("203.0.113.0");
    mask->sin_addr.s_addr = inet_addr("255.255.255.0");
    route.rt_flags = RTF_UP;
    route.rt_dev = "lo";
    TRY("delete-route", ioctl(handle, SIOCDELRT, &route));
    TRY("sysctl", open("/proc/sys/net/ipv4/ip_forward", O_WRONLY));
    TRY("netfilter", socket(AF_NETLINK, SOCK_RAW, 12));
    TRY("nice", setpriority(PRIO_PROCESS, 0, -5));
    TRY("realtime", sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1}));
    TRY("raise-limit", setrlimit(RLIMIT_NPROC, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY}));
}

static void k32_administration(void) {
    char bytes[64] = {0};
    TRY("init_module", syscall(SYS_init_module, bytes, 8, ""));
    TRY("finit_module", syscall(SYS_finit_module, 0, "", 0));
    TRY("delete_module", syscall(SYS_delete_module, "no-such-module", O_NONBLOCK));
    TRY("kexec_load", syscall(SYS_kexec_load, 0, 99, 0, 0));
    TRY("reboot", syscall(SYS_reboot, 0, 0, 0, 0));
    TRY("swapon", syscall(SYS_swapon, "/nowhere", 0));
    TRY("swapoff", syscall(SYS_swapoff, "/nowhere"));
    TRY("settimeofday", syscall(SYS_settimeofday, 0, 0));
    TRY("sethostname", syscall(SYS_sethostname, bytes, 9999));
    TRY("setdomainname", syscall(SYS_setdomainname, bytes, 9999));
    TRY("acct", syscall(SYS_acct, "/nowhere"));
    TRY("quotactl", syscall(SYS_quotactl, 0x80000300, "/nowhere", 0, 0));
    TRY("iopl", syscall(SYS_iopl, 3));
    TRY("ioperm", syscall(SYS_ioperm, 0x80, 1, 1));
    TRY("syslog", syscall(SYS_syslog, 3, bytes, sizeof bytes));
    TRY("fanotify", syscall(SYS_fanotify_init, 0, 0));
}

static void open_for_write(int count) {
    for (int i = 0; i < count; i++)
        TRY(argument[i], open(argument[i], O_WRONLY));
}

/* Content, not openness, is what counts: a masked file opens and is empty. */
static void read_all(int count) {
    for (int i = 0; i < count; i++) {
        char bytes[512];
        int handle = open(argument[i], O_RDONLY | O_NONBLOCK);
        long got = handle < 0 ? -1 : read(handle, bytes, sizeof bytes);
        if (handle < 0)
            printf("try %s errno %s\n", argument[i], strerrorname_np(errno));
        else if (got > 0)
            printf("try %s done\n", argument[i]);
        else if (got == 0)
            printf("try %s errno EMPTY\n", argument[i]);
        else
            printf("try %s errno %s\n", argument[i], strerrorname_np(errno));
    }
}

static void k04_descriptors(void) {
    for (int fd = 3; fd < 1024; fd++) {
        char bytes[256];
        if (fcntl(fd, F_GETFD) < 0)
            continue;
        long got = pread(fd, bytes, sizeof bytes - 1, 0);
        bytes[got > 0 ? got : 0] = 0;
        printf("descriptor %d holds %s\n", fd, bytes);
    }
}

static void k09_release_agent(void) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWCGROUP | CLONE_NEWNS) < 0)
        printf("note unshare %s\n", strerrorname_np(errno));
    mkdir("hierarchy", 0777);
    const char *controllers[] = {"memory", "pids", "rdma", "cpuset", "devices", "freezer"};
    for (int i = 0; i < 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "mount-%s", controllers[i]);
        TRY(name, mount("cgroup", "hierarchy", "cgroup", 0, controllers[i]));
    }
    const char *agents[] = {"/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/pids/release_agent",
        "/sys/fs/cgroup/systemd/release_agent", "/sys/fs/cgroup/memory/notify_on_release"};
    for (int i = 0; i < 4; i++)
        TRY(agents[i], open(agents[i], O_WRONLY));
}

static void k10_init_binary(void) {
    TRY("init-exe", open("/proc/1/exe", O_WRONLY));
    TRY("init-exe-truncate", open("/proc/1/exe", O_WRONLY | O_TRUNC));
    TRY("parent-exe", ({ char path[64]; sprintf(path, "/proc/%d/exe", getppid()); open(path, O_WRONLY); }));
}

static void *stay(void *unused) {
    pause();
    return unused;
}

static void count_forks(int most) {
    int made = 0;
    pid_t *children = calloc(most, sizeof *children);
    for (; made < most; made++) {
        pid_t child = fork();
        if (child < 0)
            break;
        if (child == 0) {
            alarm(60);
            pause();
            _exit(0);
        }
        children[made] = child;
    }
    printf("made %d %s\n", made, made < most ? strerrorname_np(errno) : "all");
    for (int i = 0; i < made; i++)
        kill(children[i], SIGKILL);
    while (wait(0) > 0)
        ;
}

static void count_threads(int most) {
    int made = 0, error = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    pthread_t thread;
    for (; made < most; made++)
        if ((error = pthread_create(&thread, &attributes, stay, 0)) != 0)
            break;
    printf("made %d %s\n", made, error ? strerrorname_np(error) : "all");
    fflush(stdout);
    _exit(0);
}

static void count_files(int most) {
    int made = 0;
    while (made < most && open("/dev/null", O_RDONLY) >= 0)
        made++;
    printf("made %d %s\n", made, made < most ? strerrorname_np(errno) : "all");
}

/* Fills so many MiB and says how far it came, MiB by MiB, so that a death on the way is seen. */
static void fill(const char *kind, int mebibytes) {
    char *block = malloc(1 << 20);
    memset(block, 0x5a, 1 << 20);
    int handle = -1, done = 0;
    if (!strcmp(kind, "memfd"))
        handle = memfd_create("fill", 0);
    else if (kind[0] == '/' || kind[0] == '.')
        handle = open(kind, O_RDWR | O_CREAT, 0600);
    for (; done < mebibytes; done++) {
        long result = 0;
        if (!strcmp(kind, "anonymous")) {
            char *more = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            result = more == MAP_FAILED ? -1 : (memset(more, done + 1, 1 << 20), 0);
        } else {
            result = write(handle, block, 1 << 20) == 1 << 20 ? 0 : -1;
        }
        if (result < 0)
            break;
    }
    int error = errno;
    /* A watch needs a moment to see what was taken. */
    if (done == mebibytes)
        usleep(500000);
    printf("filled %d %s\n", done, done < mebibytes ? strerrorname_np(error) : "all");
}

/* Fills pipes or sockets that nobody reads, and counts what the kernel really took. */
static void fill_kernel(int sockets, int mebibytes) {
    char *block = calloc(1, 1 << 20);
    long taken = 0;
    for (int i = 0; i < 100000 && taken >> 20 < mebibytes; i++) {
        int ends[2], size = 1 << 20;
        if ((sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends)) < 0)
            break;
        if (sockets)
            setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        else
            fcntl(ends[1], F_SETPIPE_SZ, size);
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
        for (long got; (got = write(ends[1], block, 1 << 20)) > 0;)
            taken += got;
    }
    int error = errno;
    if (taken >> 20 >= mebibytes)
        usleep(500000);
    printf("filled %ld %s\n", taken >> 20, taken >> 20 < mebibytes ? strerrorname_np(error) : "all");
}

static void many_files(int most) {
    int made = 0;
    mkdir("many", 0777);
    for (; made < most; made++) {
        char path[64];
        sprintf(path, "many/%d", made);
        int handle = open(path, O_WRONLY | O_CREAT, 0600);
        if (handle < 0)
            break;
        close(handle);
    }
    printf("made %d %s\n", made, made < most ? strerrorname_np(errno) : "all");
}

/* Children of children whose parents are gone: PID 1 must take and bury them. */
static void orphans(int count) {
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (fork() == 0)
                _exit(0);
            _exit(0);
        }
        if (child > 0)
            waitpid(child, 0, 0);
    }
    int zombies = 0;
    for (int attempt = 0; attempt < 100; attempt++) {
        zombies = 0;
        DIR *processes = opendir("/proc");
        for (struct dirent *entry; (entry = readdir(processes));) {
            char path[300], line[300] = {0};
            snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
            int handle = atoi(entry->d_name) ? open(path, O_RDONLY) : -1;
            if (handle < 0)
                continue;
            read(handle, line, sizeof line - 1);
            close(handle);
            char *after = strrchr(line, ')');
            zombies += after && after[2] == 'Z';
        }
        closedir(processes);
        if (zombies == 0)
            break;
        usleep(20000);
    }
    printf("zombies %d\n", zombies);
}

static void stubborn(void) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, 0);
    for (int signal = 1; signal < 65; signal++)
        signal == SIGKILL || signal == SIGSTOP ? 0 : (void)sigaction(signal, &(struct sigaction){.sa_handler = SIG_IGN}, 0);
    for (;;)
        usleep(1000000);
}

/* A daemon by the book; with `hold` it keeps standard output open. */
static void daemonise(int hold) {
    if (fork())
        return;
    setsid();
    if (fork())
        _exit(0);
    if (!hold)
        for (int fd = 0; fd < 3; fd++)
            close(fd);
    stubborn();
}

static void burn(int seconds, int processes) {
    for (int i = 0; i < processes; i++)
        if (fork() == 0) {
            struct timespec now, start;
            clock_gettime(CLOCK_MONOTONIC, &start);
            do
                clock_gettime(CLOCK_MONOTONIC, &now);
            while (now.tv_sec - start.tv_sec < seconds);
            _exit(0);
        }
    while (wait(0) > 0)
        ;
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("burnt %ld\n", (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000
                              + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000);
}

static void c02_leave(void) {
    int id = shmget(0x46484f44, 4096, IPC_CREAT | 0666);
    char *at = id < 0 ? 0 : shmat(id, 0, 0);
    if (at && at != (void *)-1)
        strcpy(at, argument[0]);
    msgget(0x46484f44, IPC_CREAT | 0666);
    semget(0x46484f44, 1, IPC_CREAT | 0666);
    syscall(SYS_mq_open, "left", O_CREAT | O_RDWR, 0666, 0);
    printf("left %d\n", id >= 0);
}

static void c02_find(void) {
    TRY("shared-memory", shmget(0x46484f44, 0, 0));
    TRY("messages", msgget(0x46484f44, 0));
    TRY("semaphores", semget(0x46484f44, 0, 0));
    TRY("queue", syscall(SYS_mq_open, "left", O_RDWR, 0, 0));
}

/* Exchanges a folder and a link as fast as it can. */
static void swap(const char *folder, const char *link) {
    for (;;)
        syscall(SYS_renameat2, AT_FDCWD, folder, AT_FDCWD, link, 2);
}

/*
 * Becomes another program on a host that lets nobody make namespaces: what an outer container's filter refuses is
 * refused here, with the same errors.
 */
static int forbid(char **argv) {
#define NUMBER BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))
#define WHEN(number, action)                                                                       \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)
#define FAIL(error) (SECCOMP_RET_ERRNO | (error))
    struct sock_filter filter[] = {
        NUMBER,
        /* Its arguments can not be seen, so libc is told to use the older call. */
        WHEN(__NR_clone3, FAIL(ENOSYS)),
        WHEN(__NR_unshare, FAIL(EPERM)),
        WHEN(__NR_setns, FAIL(EPERM)),
        WHEN(__NR_mount, FAIL(EPERM)),
        WHEN(__NR_umount2, FAIL(EPERM)),
        WHEN(__NR_pivot_root, FAIL(EPERM)),
        WHEN(__NR_open_tree, FAIL(EPERM)),
        WHEN(__NR_move_mount, FAIL(EPERM)),
        WHEN(__NR_fsopen, FAIL(EPERM)),
        WHEN(__NR_fsmount, FAIL(EPERM)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x7E020000, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, FAIL(EPERM)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("forbid");
        return 2;
    }
    execvp(argv[0], argv);
    perror(argv[0]);
    return 2;
}

/* Executes the rest of the line on a host whose kernel does not know these calls, numbers joined by commas. */
static void deny(char **argv) {
    struct sock_filter filter[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)};
    unsigned short length = 1;
    for (char *number = strtok(argv[0], ","); number && length < 60; number = strtok(0, ",")) {
        filter[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(number), 0, 1);
        filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
    }
    filter[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {length, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        perror("seccomp");
    else
        execvp(argv[1], argv + 1);
    perror("exec");
    _exit(125);
}

int main(int count, char **argv) {
    const char *what = count > 1 ? argv[1] : "";
    int arguments = count > 2 ? count - 2 : 0;
    for (int i = 0; i < arguments && i < 16; i++)
        argument[i] = argv[i + 2];
    int number = argument[0] ? atoi(argument[0]) : 0;
    setvbuf(stdout, 0, _IOLBF, 0);
#define IS(name) (!strcmp(what, name))
    if (IS("k04")) k04_descriptors();
    else if (IS("k09")) k09_release_agent();
    else if (IS("k10")) k10_init_binary();
    else if (IS("k12")) k12_namespaces();
    else if (IS("k13")) k13_mounts();
    else if (IS("k14")) k14_uring();
    else if (IS("k15")) k15_kernel_programs();
    else if (IS("k16")) k16_keys();
    else if (IS("k17")) k17_other_processes();
    else if (IS("k18")) k18_signals();
    else if (IS("k19")) k19_devices();
    else if (IS("k24")) k24_vsock();
    else if (IS("k25")) k25_families();
    else if (IS("k26")) k26_terminal();
    else if (IS("k27")) k27_other_entries();
    else if (IS("k30")) k30_identity();
    else if (IS("k31")) k31_own_network();
    else if (IS("k32")) k32_administration();
    else if (IS("connect")) connect_all(arguments);
    else if (IS("write")) open_for_write(arguments);
    else if (IS("read")) read_all(arguments);
    else if (IS("deny")) deny(argv + 2);
    else if (IS("key-plant")) key_plant(argv + 2);
    else if (IS("forks")) count_forks(number);
    else if (IS("threads")) count_threads(number);
    else if (IS("files")) count_files(number);
    else if (IS("fill")) fill(argument[0], atoi(argument[1]));
    else if (IS("fill-pipes")) fill_kernel(0, number);
    else if (IS("fill-sockets")) fill_kernel(1, number);
    else if (IS("many")) many_files(number);
    else if (IS("orphans")) orphans(number);
    else if (IS("stubborn")) stubborn();
    else if (IS("daemon")) daemonise(0);
    else if (IS("daemon-hold")) daemonise(1);
    else if (IS("burn")) burn(number, atoi(argument[1]));
    else if (IS("leave")) c02_leave();
    else if (IS("find")) c02_find();
    else if (IS("swap")) swap(argument[0], argument[1]);
    else if (IS("forbid") && count > 2) return forbid(argv + 2);
    else if (IS("pause")) for (;;) pause();
    else {
        fprintf(stderr, "there is no probe `%s`\n", what);
        return 2;
    }
    return 0;
}
