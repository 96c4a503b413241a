#!/usr/bin/perl
# Runs Proxmox VE's qm, pvesh and pvesm without loading their modules anew each time, which
# takes most of a second: they are loaded once, and each call is a forked child that runs
# Proxmox's own handler, as the tool's file does. lib/tools.sh starts it and asks it; it is
# not for people to run.
#
#   tool-server.pl <directory> [<seconds without a call after which it ends> (60)]
#
# Needs perl's own modules and those of Proxmox VE. In the directory, root's alone:
#   state      <pid> <its start> <loading|ready|full|failed> <uptime in seconds> <why it failed>
#   spool/     requests, a file each; taken/: those that are run, until they are read
#   well       what was loaded when the canary passed: a digest of the modules' files
# A request is text with a NUL behind each field: how many fields there are; the asker's
# process ID and start; the path that its files begin with, and its descriptor that is the
# bell; time limit, and seconds from TERM to KILL; file for stdin; working directory; empty,
# or a file and the sha1 that it must have for the call to begin; how many variables there
# are, and they; tool and arguments.
#
# A call has two processes. Its keeper is what timeout(1) is to a tool that is started: it
# writes <path>.pid, ends the call at its time limit or when it gets TERM, writes the exit
# status into <path>.rc and rings. The call itself has a process group of its own. Neither
# needs the server any more: one that is killed costs no call. Who renames a request first,
# the server into taken/ or its asker to somewhere else, has it: it is never run twice.
#
# The server itself only forks: it opens no file of pmxcfs, no socket, and holds no lock but
# that on its directory.

use strict;
use warnings;

use Digest::SHA ();
use Fcntl qw(:flock :mode);
use Getopt::Long ();
use POSIX       qw(:sys_wait_h :signal_h);
use Time::HiRes ();

my $program = $0;
my ($dir, $idle) = @ARGV;
my ($most_children, $most_calls, $most_pages) = (32, 2000, 1 << 18);
my @tools = qw(pvesm pvesh qm);

my (%getopt, %path, @files, @warned, $fingerprint, $lock, %came, %children);
my $tries = 0;
my $none = POSIX::SigSet->new;
my $awaited = POSIX::SigSet->new(SIGURG, SIGCHLD, SIGALRM, SIGTERM);

my $tool = serve();

# In a call's child. Here, and in no eval, for what dies ends it as it ends the tool.
require "PVE/CLI/$tool.pm";
"PVE::CLI::$tool"->run_cli_handler();

# --- the server ---

# Returns in a call's child alone: the tool.
sub serve {
    die "usage: tool-server.pl <directory> [<seconds>]\n" unless defined $dir and $dir =~ m{^/};
    $idle //= 60;
    umask 077;
    chdir '/';
    POSIX::close($_) for open_files();
    make_directories();
    open $lock, '>>', "$dir/lock" or die "$dir/lock: $!\n";
    flock $lock, LOCK_EX | LOCK_NB or leave(0);    # another serves
    report('loading');
    my $failure = prepare();
    return $failure->{tool} if ref $failure;
    if (defined $failure) {
        report('failed', $failure);
        leave(1);
    }

    $SIG{$_} = sub { $came{ $_[0] } = 1 } for qw(URG CHLD ALRM TERM);
    sigprocmask(SIG_BLOCK, $awaited);
    my ($calls, $last, $state) = (0, Time::HiRes::time(), '');
    while (!$came{TERM}) {
        my $now = reap() < $most_children ? 'ready' : 'full';
        report($state = $now) if $state ne $now;
        for my $request ($now eq 'ready' ? requests() : ()) {
            last if keys %children >= $most_children;
            anew() if $calls++ >= $most_calls or print_of(@files) ne $fingerprint or pages() > $most_pages;
            $last = Time::HiRes::time();
            my $began = take($request);
            return $began if defined $began;
        }
        next if $state eq 'ready' and keys %children >= $most_children;
        my $left = $last + $idle - Time::HiRes::time();
        if ($left <= 0 and !%children) {
            unlink "$dir/state";    # who asks from here on looks for a server first
            my @late = requests();
            last unless @late;
            ($state, $last) = ('', Time::HiRes::time());
            next;
        }
        Time::HiRes::alarm($left > 0 ? $left : $idle + 1);
        sigsuspend($none);
    }
    unlink "$dir/state";
    leave(0);
}

sub open_files {
    opendir my $all, '/proc/self/fd' or return;
    return grep { /^\d+\z/ && $_ > 2 } readdir $all;
}

sub make_directories {
    my ($above) = $dir =~ m{^(.+)/};
    mkdir $above, 0700;
    mkdir $dir, 0700;
    for ($above, $dir) {
        my @stat = lstat;
        die "$_ is not a directory of this user's that nobody else may write to\n"
            unless @stat and S_ISDIR($stat[2]) and $stat[4] == $> and !($stat[2] & 022);
    }
    mkdir "$dir/$_", 0700 for qw(spool taken);
}

sub report {
    my ($state, $text) = @_;
    $text = ($text // '') =~ s/\s+/ /gr;
    put("$dir/state", "$$ " . start_of($$) . " $state " . int(uptime()) . ' ' . substr($text, 0, 400) . "\n");
}

# Whole or not at all.
sub put {
    my ($file, $text) = @_;
    open my $out, '>', "$file.new" or return;
    print $out $text and close $out and rename "$file.new", $file;
}

sub get {
    my ($file) = @_;
    open my $in, '<', $file or return '';
    local $/;
    return <$in> // '';
}

sub uptime { return (split ' ', get('/proc/uptime'))[0] }

sub start_of {
    my ($pid) = @_;
    return (split ' ', get("/proc/$pid/stat") =~ s/.*\)//sr)[19] // '';
}

sub pages { return (split ' ', get('/proc/self/statm'))[1] }

sub leave {
    my ($status) = @_;
    POSIX::_exit($status);    # what the modules do at the end is the calls'
}

# How many children there are.
sub reap {
    while ((my $pid = waitpid -1, WNOHANG) > 0) {
        delete $children{$pid};
    }
    return scalar keys %children;
}

# Begins again, with what is installed now. Calls that are under way go on, and stay children.
sub anew {
    report('loading');
    Time::HiRes::alarm(0);    # it would outlive exec
    sigprocmask(SIG_SETMASK, $none);
    exec {$^X} $^X, $program, $dir, $idle or leave(1);
}

# --- loading ---

# Returns why it cannot serve, or nothing; in a call's child what begin returns.
sub prepare {
    my $began;
    $path{$_} = which($_) || return "there is no $_ in $ENV{PATH}" for @tools;
    my $installed = $ENV{LINUS_DPKG_STATUS} || '/var/lib/dpkg/status';
    my $before = print_of($installed);
    my @plain = get("$dir/well") ? () : map { try_plain($_) } canaries();
    eval { load(); 1 } or return "loading failed: $@";
    return 'packages were being changed' if $before ne print_of($installed);
    push @files, grep { defined and !ref } values %INC;
    my %seen = map { $_ => 1 } @files, map({ m{^(.*/PVE/.*)/} } @files), $installed, $program, '/usr/share/perl5/PVE/Storage/Custom';
    @files = grep { -e } sort keys %seen;
    $fingerprint = print_of(@files);
    return if get("$dir/well") eq $fingerprint;
    @plain = map { try_plain($_) } canaries() if !@plain;
    my @own;
    for my $canary (canaries()) {
        my $own = try_own($canary);
        return $own if $own->{tool};
        push @own, $own;
    }
    for my $i (0 .. $#own) {
        my ($plain, $own) = map { outcome($_) } $plain[$i], $own[$i];
        $plain =~ s/\Q$_\E// for @warned;    # it loads them, too
        return "'@{$own[$i]{argv}}' by the loaded modules differs from the tool's own: $own, not $plain" if words_of($plain) ne words_of($own);
    }
    put("$dir/well", $fingerprint);
    return;
}

sub which {
    my ($name) = @_;
    my ($found) = grep { -x } map { "$_/$name" } split /:/, $ENV{PATH} || '/usr/sbin:/usr/bin:/sbin:/bin';
    return $found;
}

# pvesh looks at its arguments while it is loaded: that file is left to the calls, and only
# what it uses is loaded. What Getopt::Long is set to by one tool's modules is not the others'.
sub load {
    local @ARGV;
    local $SIG{__WARN__} = sub { push @warned, @_ };
    for my $name (@tools) {
        my $file = "PVE/CLI/$name.pm";
        if ($name eq 'pvesh') {
            my ($found) = grep { -e } map { "$_/$file" } grep { !ref } @INC;
            die "there is no $file\n" unless defined $found;
            for my $module (get($found) =~ /^use ([A-Z][\w:]*)/mg) {
                require(($module =~ s{::}{/}gr) . '.pm');
            }
            push @files, $found;
        } else {
            require $file;
        }
        $getopt{$name} = Getopt::Long::Configure();
    }
}

sub print_of {
    return Digest::SHA::sha1_hex(join "\n", (POSIX::uname())[1], map { join ':', $_, map { $_ // '' } (stat)[9, 7, 1] } @_);
}

# Calls that change nothing, and answer the same whatever goes on.
sub canaries {
    return [qw(qm status 999999999)], [qw(pvesh get /storage --output-format json)], [qw(pvesm list linus-canary)];
}

sub try_plain {
    my ($argv) = @_;
    my $try = { argv => $argv, to => "$dir/canary-" . $tries++ };
    $try->{pid} = fork // return $try;
    if (!$try->{pid}) {
        become($try->{to}, '/dev/null');
        exec { $path{ $argv->[0] } } @$argv or leave(126);
    }
    return $try;
}

sub try_own {
    my ($argv) = @_;
    my $try = { argv => $argv, to => "$dir/canary-" . $tries++ };
    $try->{pid} = fork // return $try;
    if (!$try->{pid}) {
        become($try->{to}, '/dev/null');
        return { tool => arm(@$argv) };
    }
    return $try;
}

# What there is of an answer whatever its order: Proxmox prints sets in another one each time.
sub words_of {
    my ($text) = @_;
    return join ' ', sort split /\W+/, $text;
}

# What a try ended with, in words.
sub outcome {
    my ($try) = @_;
    my $status = 'none';
    my $until = Time::HiRes::time() + 30;
    while ($try->{pid}) {
        if (waitpid($try->{pid}, WNOHANG) > 0) {
            $status = $? ? 'failure' : 'success';
            last;
        }
        last if Time::HiRes::time() > $until;
        Time::HiRes::sleep(0.005);
    }
    kill KILL => $try->{pid} if $status eq 'none' and $try->{pid};
    my $said = join ' and ', map { substr get("$try->{to}.$_"), 0, 1 << 20 } qw(out err);
    unlink map { "$try->{to}.$_" } qw(out err);
    return "$status, $said";
}

# --- calls ---

# The requests that there are, oldest first.
sub requests {
    opendir my $spool, "$dir/spool" or return;
    my %age = map { $_ => (stat "$dir/spool/$_")[9] // 0 } grep { /^\d+\.\d+\z/ } readdir $spool;
    return sort { $age{$a} <=> $age{$b} or $a cmp $b } keys %age;
}

# Returns the tool in a call's child, else nothing.
sub take {
    my ($name) = @_;
    my $file = "$dir/spool/$name";
    my @stat = lstat $file;
    return unless @stat and S_ISREG($stat[2]) and $stat[4] == $>;
    my $text = get($file);
    my @fields = split /\0/, $text, -1;
    pop @fields;
    if (!@fields or $fields[0] ne @fields or $text !~ /\0\z/) {    # it is being written
        my ($asker) = $name =~ /^(\d+)/;
        unlink $file unless kill 0, $asker;
        return;
    }
    my %r;
    (undef, @r{qw(asker start to bell limit grace stdin cwd guard count)}) = splice @fields, 0, 11;
    $r{env} = [splice @fields, 0, $r{count}];
    $r{argv} = \@fields;
    rename $file, "$dir/taken/$name" or return;
    unlink "$dir/taken/$name";
    return unless $path{ $r{argv}[0] // '' };
    return if start_of($r{asker}) ne $r{start};    # who asked has gone: nothing has begun
    my $keeper = fork;
    if (!defined $keeper) {
        conclude(\%r, 126, "linus: no process for it: $!\n");
        return;
    }
    if ($keeper) {
        $children{$keeper} = 1;
        return;
    }
    return keep(\%r);
}

# What timeout(1) is to a tool that is started.
sub keep {
    my ($r) = @_;
    close $lock;
    # A directory of the asker's, which may be another's once that has gone: from here on it is this one.
    (my $where, $r->{to}) = $r->{to} =~ m{^(/.*)/([^/]+)\z}s or leave(1);
    my @stat = chdir $where ? stat '.' : ();
    leave(1) unless @stat and $stat[4] == $> and !($stat[2] & 022);
    POSIX::setpgid(0, 0);
    $0 = "linus keeper of @{$r->{argv}}[0 .. ($#{$r->{argv}} > 1 ? 2 : $#{$r->{argv}})]";
    put("$r->{to}.pid", "$$ " . start_of($$));
    %came = ();
    $SIG{$_} = sub { $came{ $_[0] } = 1 } for qw(CHLD ALRM TERM INT HUP);
    sigprocmask(SIG_SETMASK, POSIX::SigSet->new(SIGCHLD, SIGALRM, SIGTERM, SIGINT, SIGHUP));
    my $pid = fork;
    if (!defined $pid) {
        conclude($r, 126, "linus: no process for it: $!\n");
        leave(0);
    }
    if (!$pid) {
        POSIX::setpgid(0, 0);
        return begin($r);
    }
    POSIX::setpgid($pid, $pid);
    my ($late, $told) = (0, 0);
    Time::HiRes::alarm($r->{limit});
    until (waitpid($pid, WNOHANG) == $pid) {
        if (my ($signal) = grep { $came{$_} } qw(ALRM TERM INT HUP)) {
            $late ||= $signal eq 'ALRM' && !$told;
            my $last = $signal eq 'ALRM' && $told;
            $late = 137 if $last;
            kill $last ? 'KILL' : 'TERM', -$pid;
            kill 'CONT', -$pid;
            Time::HiRes::alarm($r->{grace}) if !$told++;
            $came{$signal} = 0;
            next;
        }
        sigsuspend($none);
    }
    conclude($r, $late == 137 ? 137 : $late ? 124 : $? & 127 ? 128 + ($? & 127) : $? >> 8);
    leave(0);
}

sub conclude {
    my ($r, $status, $text) = @_;
    if (defined $text and open my $err, '>>', "$r->{to}.err") {
        print $err $text;
    }
    put("$r->{to}.rc", $status);
    return if start_of($r->{asker}) ne $r->{start};
    if (sysopen my $bell, "/proc/$r->{asker}/fd/$r->{bell}", POSIX::O_WRONLY | POSIX::O_NONBLOCK) {
        syswrite $bell, "\n";
    }
}

# Becomes the call: returns its tool.
sub begin {
    my ($r) = @_;
    %ENV = map { /^([^=]+)=(.*)\z/s ? ($1 => $2) : () } @{$r->{env}};
    become($r->{to}, $r->{stdin});
    chdir $r->{cwd} or refuse("$r->{cwd}: $!");
    if (my ($file, $sha1) = $r->{guard} =~ /^(.*) ([0-9a-f]{40})\z/s) {
        refuse("$file has changed since it was read") if Digest::SHA::sha1_hex(get($file)) ne $sha1;
    }
    return arm(@{$r->{argv}});
}

sub refuse {
    my ($text) = @_;
    syswrite STDERR, "linus: $text: not begun\n";
    leave(75);
}

# Standard input, output and error, signals and umask as a tool has them that is started.
sub become {
    my ($to, $stdin) = @_;
    sigprocmask(SIG_SETMASK, $none);
    $SIG{$_} = 'DEFAULT' for qw(URG CHLD ALRM TERM INT HUP PIPE);
    Time::HiRes::alarm(0);
    my $create = POSIX::O_WRONLY | POSIX::O_CREAT | POSIX::O_TRUNC;
    my @open = (POSIX::open($stdin, POSIX::O_RDONLY), POSIX::open("$to.out", $create, 0600), POSIX::open("$to.err", $create, 0600));
    leave(126) if grep { !defined } @open;
    POSIX::dup2($open[$_], $_) for 0 .. 2;
    POSIX::close($_) for grep { $_ > 2 } @open;
    close $lock;
    umask 022;
}

sub arm {
    my ($name, @arguments) = @_;
    @ARGV = @arguments;
    $0 = $path{$name};
    Getopt::Long::Configure($getopt{$name});
    srand;
    return $name;
}
