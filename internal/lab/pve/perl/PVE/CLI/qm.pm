package PVE::CLI::qm;

use strict;
use warnings;

use PVE::Lab;

sub run_cli_handler { PVE::Lab::call(@_) }

1;
