#!/usr/bin/perl
# A stand-in for linus' callback server: one process, one request at a time.
# usage: callback-server.pl DIR [PORT]
# The token it wants is in DIR/token: tests look for it in argument lists.
# Writes its port to DIR/port, a line per request to DIR/requests
# ("METHOD path status"), bodies to DIR/body.N, output streams to
# DIR/got.stdout and DIR/got.stderr. DIR/answer, when there, holds the status
# every request is answered with; DIR/health what /health answers.
use strict;
use warnings;
use IO::Socket::INET;
my ($dir, $port) = @ARGV;
my $token = get("$dir/token");
my $server = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port // 0, Listen => 64, ReuseAddr => 1)
  or die "listen: $!";
put("$dir/port.new", $server->sockport);
rename "$dir/port.new", "$dir/port" or die $!;
my $count = 0;
while (my $client = $server->accept) {
  binmode $client;
  my $request = <$client> // next;
  my %header;
  while (defined(my $line = <$client>)) {
    $line =~ s/\r?\n//;
    last if $line eq '';
    $header{lc $1} = $2 if $line =~ /^([^:]+):\s*(.*)$/;
  }
  my $body = '';
  read $client, $body, $header{'content-length'} // 0;
  my ($method, $path) = split ' ', $request;
  my $status = -e "$dir/answer" ? 0 + get("$dir/answer") : 200;
  my $answer = '{"received": true}';
  if ($path eq '/health') {
    $answer = -e "$dir/health" ? get("$dir/health") : '{"status":"ok"}' . "\n";
  } elsif (($header{authorization} // '') ne "Bearer $token") {
    $status = 401;
  }
  if ($status == 200 && $path =~ /output\?stream=(stdout|stderr)&offset=(\d+)$/) {
    my $file = "$dir/got.$1";
    my $held = -s $file // 0;
    if ($2 == $held) { put($file, $body, '>>'); $held += length $body }
    $answer = "{\"received\": true, \"length\": $held}";
  }
  $count += 1;
  put("$dir/body.$count", $body);
  put("$dir/requests", "$method $path $status\n", '>>');
  print $client "HTTP/1.1 $status X\r\nContent-Length: ", length $answer, "\r\nConnection: close\r\n\r\n$answer";
  close $client;
}
sub put { my ($name, $text, $mode) = @_; open my $f, $mode // '>', $name or die $!; binmode $f; print $f $text; close $f }
sub get { my ($name) = @_; open my $f, '<', $name or die $!; local $/; return <$f> }
