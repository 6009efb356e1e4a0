# Deletes every file that belongs to none of the packages in @ARGV. It runs as root in the image and reads nothing from
# the network. The package list keeps entries of these packages only, so that the image scan still finds their fixes.
use strict;
use warnings;
use Cwd qw(realpath);

my @packages = @ARGV;
my $status = "/var/lib/dpkg/status";
my %kept = map { $_ => 1 } $status, "/etc/passwd", "/etc/group", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf",
    "/etc/resolv.conf";

for my $package (@packages) {
    open(my $files, "-|", "dpkg-query", "--listfiles", $package) or die "dpkg-query: $!";
    while (my $file = <$files>) {
        chomp $file;
        next if $file !~ m{^/} || $file eq "/." || (-d $file && !-l $file);
        # Converters of character sets: nginx uses none of them.
        next if $file =~ m{/gconv/};
        # A package may list /lib/x, which lies at /usr/lib/x.
        my ($directory, $name) = $file =~ m{^(.*)/([^/]+)$};
        my $real = realpath($directory eq "" ? "/" : $directory);
        $kept{($real eq "/" ? "" : $real) . "/$name"} = 1 if defined $real;
    }
    close($files) or die "$package is not installed";
}

my %installed = map { $_ => 1 } @packages;
open(my $all, "<", $status) or die "$status: $!";
local $/ = "";
my @entries;
while (my $entry = <$all>) {
    my ($name) = $entry =~ /^Package: (\S+)$/m;
    next unless defined $name && $installed{$name};
    # Packages that these name are no longer there, and apt refuses a list with broken dependencies.
    $entry =~ s/^(?:Pre-Depends|Depends|Recommends|Suggests|Breaks|Conflicts|Replaces|Provides|Enhances|Essential|Important):.*\n(?:[ \t].*\n)*//mg;
    push @entries, $entry;
}
close($all);
open(my $new, ">", $status) or die "$status: $!";
print {$new} @entries;
close($new) or die "$status: $!";

# Mounts of this run, and directories whose absence would surprise a program.
my %left = map { $_ => 1 } "/proc", "/sys", "/dev";
my %directories = map { $_ => 1 } "/tmp", "/run", "/srv", "/root", "/var/log/nginx", "/var/lib/nginx";

sub clear {
    my ($directory) = @_;
    opendir(my $open, $directory eq "" ? "/" : $directory) or die "$directory: $!";
    my @names = grep { $_ ne "." && $_ ne ".." } readdir($open);
    closedir($open);
    for my $name (@names) {
        my $path = "$directory/$name";
        next if $left{$path};
        # Links of the root, such as /lib, lead to where the kept files are.
        next if $directory eq "" && -l $path;
        if (-d $path && !-l $path) {
            clear($path);
            rmdir($path) unless $directories{$path};
        } elsif (!$kept{$path}) {
            unlink($path) or die "$path: $!";
        }
    }
}
clear("");
