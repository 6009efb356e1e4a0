/**
 * System calls that a program on the host's kernel may use: a table as data, and its OCI form. It contains
 * calls that ordinary programs use and that are safe for untrusted programs. It contains none that mounts,
 * makes namespaces, accesses other processes' memory, loads code into the kernel, or needs a capability that
 * no machine has. The defaults of container engines are the same, except for nested containers, which these
 * machines do not run.
 *
 * A call in neither list fails as "not implemented", as on an older kernel, and libraries then do without it.
 * A refused call fails as "not permitted". Only the host's own word size is allowed: 32-bit programs do not
 * run.
 */
import { constants } from "node:os";

const words = (text: string): string[] => text.trim().split(/\s+/);

const ALLOWED = words(`
  accept accept4 access adjtimex alarm arch_prctl bind brk cachestat capget capset chdir chmod chown clock_adjtime
  clock_getres clock_gettime clock_nanosleep close close_range connect copy_file_range creat dup dup2 dup3
  epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 execve execveat exit
  exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync
  fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate futex futex_requeue futex_wait
  futex_waitv futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents getdents64
  getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom
  getresgid getresuid getrlimit getrusage getsockname getsockopt gettid gettimeofday getuid getxattr getxattrat
  inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_pgetevents
  io_setup io_submit ioctl ioprio_get ioprio_set kill landlock_add_rule landlock_create_ruleset landlock_restrict_self
  lchown lgetxattr link linkat listen listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat madvise
  map_shadow_stack mbind membarrier memfd_create mincore mkdir mkdirat mknod mknodat mlock mlock2 mlockall mmap
  mprotect mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink mremap mseal msgctl msgget msgrcv
  msgsnd msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat open openat openat2 pause pidfd_open
  pidfd_send_signal pipe pipe2 pkey_alloc pkey_free pkey_mprotect poll ppoll prctl pread64 preadv preadv2 prlimit64
  process_mrelease pselect6 ptrace pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv recvfrom
  recvmmsg recvmsg remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq
  rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
  rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
  sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
  sched_yield seccomp select semctl semget semop semtimedop sendfile sendmmsg sendmsg sendto set_mempolicy
  set_mempolicy_home_node set_robust_list set_thread_area set_tid_address setfsgid setfsuid setgid setgroups setitimer
  setpgid setpriority setregid setresgid setresuid setreuid setrlimit setsid setsockopt setuid setxattr setxattrat
  shmat shmctl shmdt shmget shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink
  symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun
  timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink
  unlinkat utime utimensat utimes vfork wait4 waitid write writev
`);

const REFUSED = words(`
  acct add_key bpf chroot clock_settime create_module delete_module fanotify_init fanotify_mark finit_module fsconfig
  fsmount fsopen fspick init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load
  kexec_load keyctl lookup_dcookie migrate_pages modify_ldt mount mount_setattr move_mount move_pages nfsservctl
  open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise process_vm_readv
  process_vm_writev quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday swapoff swapon
  syslog umount2 unshare uselib userfaultfd vhangup vmsplice
`);

/** Flags of clone(2): CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET. */
const NEW_NAMESPACES = 0x7e02_0000;
/**
 * Allowed arguments of personality(2): Linux, Linux with 32-bit addresses, both with UNAME26, and the query of the
 * current value.
 */
const PERSONALITIES = [0x0, 0x8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/** Allowed socket families: AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK, which lists addresses. */
const SOCKET_FAMILIES = [1, 2, 10, 16];

const ARCHITECTURES: Partial<Record<string, string>> = {
  x64: "SCMP_ARCH_X86_64",
  arm64: "SCMP_ARCH_AARCH64",
};

interface Rule {
  names: string[];
  action: string;
  errnoRet?: number;
}

interface SystemCallFilter {
  defaultAction: string;
  defaultErrnoRet: number;
  architectures: (string | undefined)[];
  syscalls: Rule[];
}

const allowCall = (name: string, index: number, op: string, value: number, valueTwo = 0) => ({
  names: [name],
  action: "SCMP_ACT_ALLOW",
  args: [{ index, op, value, valueTwo }],
});

/**
 * Returns the filter of a build step, in the format of containers/common. Unlike the filter of apps, it allows
 * `chroot`, which package scripts use. It has no rule for clone3, because the default is ENOSYS.
 */
export function stepSystemCallFilter(architecture: string): SystemCallFilter {
  const { syscalls, ...filter } = systemCallFilter(architecture);
  const rules = syscalls.map((rule) => ({
    ...rule,
    names: rule.names.filter((name) => name !== "chroot" && name !== "clone3"),
  }));
  return {
    ...filter,
    syscalls: [
      ...rules.filter(({ names }) => names.length > 0),
      { names: ["chroot"], action: "SCMP_ACT_ALLOW" },
    ],
  };
}

/** Returns `linux.seccomp` of an OCI spec. runc skips names that the host's libseccomp does not know yet. */
export function systemCallFilter(architecture: string): SystemCallFilter {
  return {
    defaultAction: "SCMP_ACT_ERRNO",
    defaultErrnoRet: constants.errno.ENOSYS,
    architectures: [ARCHITECTURES[architecture]],
    syscalls: [
      { names: ALLOWED, action: "SCMP_ACT_ALLOW" },
      { names: REFUSED, action: "SCMP_ACT_ERRNO", errnoRet: constants.errno.EPERM },
      allowCall("clone", 0, "SCMP_CMP_MASKED_EQ", NEW_NAMESPACES),
      // clone3's flags are in memory, which a filter cannot read. Libraries fall back to clone.
      { names: ["clone3"], action: "SCMP_ACT_ERRNO", errnoRet: constants.errno.ENOSYS },
      ...PERSONALITIES.map((value) => allowCall("personality", 0, "SCMP_CMP_EQ", value)),
      ...SOCKET_FAMILIES.map((family) => allowCall("socket", 0, "SCMP_CMP_EQ", family)),
    ],
  };
}
