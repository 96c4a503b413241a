package PVE::CLI::pvesh;

use strict;
use warnings;

use PVE::Lab;

# Proxmox's, too, takes what it is asked for from the arguments that there are when it is
# loaded: where it was loaded before, it knows no path.
my @asked = @ARGV;

sub run_cli_handler {
    my ($class) = @_;
    die "400 Parameter verification failed.\n" if "@asked" ne "@ARGV";
    PVE::Lab::call($class);
}

1;
