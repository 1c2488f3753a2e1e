"""Which system calls a container may make: those that programs need to compute, to handle files, and to talk over sockets.

An allow list. What is not on it fails with EPERM, as if not permitted; `clone3` with ENOSYS, so that C libraries fall back to
`clone`, whose flags can be looked at. Left out on purpose: mounting, namespaces, kernel modules and keys, tracing other
processes, io_uring, bpf, clocks, reboot. Pure. Only the machine's own word size: 32-bit programs end at once.
"""

from __future__ import annotations

from typing import Any, Final

ENOSYS: Final = 38
EPERM: Final = 1
NAMESPACE_FLAGS: Final = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
AF_VSOCK: Final = 40
ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}

_FILES: Final = """
access faccessat faccessat2 open openat openat2 creat close close_range read write readv writev pread64 pwrite64 preadv
pwritev preadv2 pwritev2 lseek _llseek sendfile sendfile64 splice tee vmsplice copy_file_range readahead fadvise64
fadvise64_64 arm_fadvise64_64 sync_file_range fallocate truncate ftruncate truncate64 ftruncate64 fsync fdatasync sync
syncfs dup dup2 dup3 pipe pipe2 fcntl fcntl64 flock ioctl stat lstat fstat newfstatat fstatat64 stat64 lstat64 fstat64 statx
statfs fstatfs statfs64 fstatfs64 getcwd chdir fchdir rename renameat renameat2 link linkat unlink unlinkat symlink
symlinkat readlink readlinkat mkdir mkdirat rmdir mknod mknodat chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
chown32 fchown32 lchown32 umask utime utimes utimensat futimesat utimensat_time64 getdents getdents64 getxattr lgetxattr
fgetxattr listxattr llistxattr flistxattr setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr inotify_init
inotify_init1 inotify_add_watch inotify_rm_watch memfd_create chroot name_to_handle_at cachestat
"""
_MEMORY: Final = """
brk mmap mmap2 munmap mremap mprotect madvise msync mincore mlock mlock2 mlockall munlock munlockall membarrier pkey_alloc
pkey_free pkey_mprotect remap_file_pages get_mempolicy set_mempolicy mbind set_mempolicy_home_node map_shadow_stack
process_mrelease
"""
_PROCESSES: Final = """
fork vfork execve execveat exit exit_group wait4 waitid waitpid getpid getppid gettid getpgid getpgrp getsid setpgid setsid
set_tid_address set_robust_list get_robust_list futex futex_time64 futex_waitv futex_wake futex_wait futex_requeue rseq kill
tkill tgkill rt_sigaction rt_sigprocmask rt_sigpending rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64
rt_sigqueueinfo rt_tgsigqueueinfo sigaltstack sigaction sigpending sigprocmask sigreturn sigsuspend signal signalfd
signalfd4 pause alarm prctl arch_prctl getrlimit setrlimit prlimit64 ugetrlimit getrusage times sysinfo uname getcpu
pidfd_open pidfd_send_signal restart_syscall set_thread_area get_thread_area seccomp getrandom ioprio_get ioprio_set
landlock_create_ruleset landlock_add_rule landlock_restrict_self
"""
_IDENTITY: Final = """
getuid geteuid getgid getegid getresuid getresgid getgroups setuid setgid setreuid setregid setresuid setresgid setfsuid
setfsgid setgroups getuid32 geteuid32 getgid32 getegid32 getresuid32 getresgid32 getgroups32 setuid32 setgid32 setreuid32
setregid32 setresuid32 setresgid32 setfsuid32 setfsgid32 setgroups32 capget capset
"""
_SCHEDULING: Final = """
sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler sched_setscheduler
sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval sched_rr_get_interval_time64
getpriority setpriority nice
"""
_TIME: Final = """
time gettimeofday clock_gettime clock_gettime64 clock_getres clock_getres_time64 clock_nanosleep clock_nanosleep_time64
nanosleep getitimer setitimer timer_create timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime
timer_settime64 timerfd_create timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 adjtimex clock_adjtime
clock_adjtime64
"""
_WAITING: Final = """
poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64 epoll_create epoll_create1 epoll_ctl epoll_ctl_old
epoll_wait epoll_wait_old epoll_pwait epoll_pwait2 eventfd eventfd2 io_setup io_submit io_getevents io_pgetevents
io_pgetevents_time64 io_cancel io_destroy
"""
_TALKING: Final = """
socketpair socketcall bind listen accept accept4 connect getsockname getpeername getsockopt setsockopt send sendto sendmsg
sendmmsg recv recvfrom recvmsg recvmmsg recvmmsg_time64 shutdown msgget msgsnd msgrcv msgctl semget semop semtimedop
semtimedop_time64 semctl shmget shmat shmdt shmctl ipc mq_open mq_unlink mq_notify mq_getsetattr mq_timedsend
mq_timedsend_time64 mq_timedreceive mq_timedreceive_time64
"""
_TRACING: Final = ("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd")

ALLOWED: Final = tuple(
    sorted(" ".join((_FILES, _MEMORY, _PROCESSES, _IDENTITY, _SCHEDULING, _TIME, _WAITING, _TALKING)).split())
)


def profile(machine: str, capabilities: frozenset[str]) -> dict[str, Any] | None:
    """`linux.seccomp` of a bundle. None for a machine whose calls are not known here."""
    architecture = ARCHITECTURES.get(machine)
    if architecture is None:
        return None
    names = [*ALLOWED, *(_TRACING if "CAP_SYS_PTRACE" in capabilities else ())]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": [architecture],
        "syscalls": [
            _allow(names),
            _allow(["clone"], [{"index": 0, "value": NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]),
            _allow(["socket"], [{"index": 0, "value": AF_VSOCK, "op": "SCMP_CMP_NE"}]),
            # The plain personality, no address randomisation, 32-bit uname, both, and asking for the present one.
            *(
                _allow(["personality"], [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}])
                for value in (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
            ),
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
        ],
    }


def _allow(names: list[str], args: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ALLOW", **({"args": args} if args else {})}
