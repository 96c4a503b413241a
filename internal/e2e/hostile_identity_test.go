package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/sshtest"
)

// Guests that say they are others, and strangers where a guest should be: what
// is meant for one VM reaches no other machine.

// lyingAgents puts a qm before the host's that answers for VMs' guest agents.
func (h *host) lyingAgents(t *testing.T) {
	t.Helper()
	const qm = `#!/usr/bin/env bash
case " $* " in
  " guest cmd "*" network-get-interfaces "*) lie=interfaces ;;
  " guest exec "*ssh_host_*) lie=key ;;
  *) lie=none ;;
esac
for file in "%[1]s/lies/$3.${lie}" "%[1]s/lies/any.${lie}"; do
  if [[ -e ${file} ]]; then
    mac=$(sed -nE 's/^net0: [a-z0-9]+=([0-9A-F:]{17}).*/\L\1/p' "%[1]s/etc/pve/qemu-server/$3.conf")
    exec sed "s/MAC/${mac}/g" "${file}"
  fi
done
exec -a qm "%[2]s" "$@"
`
	path := filepath.Join(h.dir, "bin", "qm")
	err := os.Mkdir(h.lies(), 0o755)
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = os.WriteFile(path, fmt.Appendf(nil, qm, h.dir, filepath.Join(binDir, "pvelab")), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(h.lies()) })
}

func (h *host) lies() string { return filepath.Join(h.dir, "lies") }

// lie has the agent of a VM ("any": of all) answer with these interfaces and this
// host key; where one is empty, with the truth.
func (h *host) lie(t *testing.T, vm, interfaces, key string) {
	t.Helper()
	if key != "" {
		key = fmt.Sprintf(`{"exitcode":0,"exited":1,"out-data":%q}`, "linus-host-key "+key+"\n")
	}
	for name, text := range map[string]string{"interfaces": interfaces, "key": key} {
		path := filepath.Join(h.lies(), vm+"."+name)
		_ = os.Remove(path) // the lie before
		if text == "" {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// at is an agent's answer that the VM's card has these addresses.
func at(addresses ...string) string {
	all := make([]string, len(addresses))
	for i, a := range addresses {
		family := "ipv4"
		if strings.Contains(a, ":") {
			family = "ipv6"
		}
		all[i] = fmt.Sprintf(`{"ip-address":%q,"ip-address-type":%q}`, a, family)
	}
	return `[{"name":"eth0","hardware-address":"MAC","ip-addresses":[` + strings.Join(all, ",") + `]}]`
}

// keep makes a VM that stays and returns its ID, address and host key.
func (c *mcpClient) keep(h *host, name string) (id, ip, key string) {
	c.t.Helper()
	c.wait(c.call("provision_vm", map[string]any{"name": name})["job_id"].(string))
	vm := c.call("get_vm", map[string]any{"vm_id": name})
	id, ip = vm["vm_id"].(string), vm["ip"].(string)
	said, err := h.lab.QM(c.t.Context(), "guest", "exec", id, "--", "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
	fields := strings.Fields(said[strings.Index(said, "ssh-ed25519"):])
	if err != nil || len(fields) < 2 {
		c.t.Fatalf("host key of %s: %q, %v", name, said, err)
	}
	return id, ip, fields[0] + " " + fields[1]
}

// macOf is the hardware address of a VM's card.
func (h *host) macOf(t *testing.T, vm string) string {
	t.Helper()
	id, _ := strconv.Atoi(vm)
	conf, err := h.lab.LoadConf(id)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToLower(conf.MAC())
}

// A guest that was taken over lies about where it is and who. It is not started
// as another machine, whatever it says; a new VM is not made one; and when it
// stops lying it is itself again.
func TestHostileAgent_NoVMPassesForAnother(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "VM_NETWORK_TIMEOUT=10", "VM_READY_TIMEOUT=10")
	h.lyingAgents(t)
	c := h.connect(t)
	_, victimIP, victimKey := c.keep(h, "victim")
	liar, liarIP, liarKey := c.keep(h, "liar")
	many := make([]string, 10000)
	for i := range many {
		many[i] = strings.Trim(at(fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)), "[]")
	}
	tests := []struct {
		name            string
		interfaces, key string
		neighbour       string // the hardware address the network shows, where it is not the truth
		says            string
	}{
		{"another VM's address", at(victimIP), "", "", "is not what answers at " + victimIP},
		{"another VM's address and key", at(victimIP), victimKey, "", "is not what answers at " + victimIP},
		{"another VM's address, and its frames forged", at(victimIP), "", h.macOf(t, liar), "is not that of VM"},
		{"another VM's address and key, and its frames forged", at(victimIP), victimKey, h.macOf(t, liar), "it shows the SSH host key of VM"},
		{"another VM's key", "", victimKey, "", "is not that of VM"},
		{"the host's address", at("127.0.0.1"), "", "", "127.0.0.1"},
		{"addresses no machine has, and texts that are none", `[{"name":"eth0","hardware-address":"MAC","ip-addresses":[
			{"ip-address":"169.254.1.1","ip-address-type":"ipv4"},{"ip-address":"224.0.0.1","ip-address-type":"ipv4"},
			{"ip-address":"255.255.255.255","ip-address-type":"ipv4"},{"ip-address":"0.0.0.0","ip-address-type":"ipv4"},
			{"ip-address":"fe80::1","ip-address-type":"ipv6"},{"ip-address":"ff02::1","ip-address-type":"ipv6"},
			{"ip-address":"::ffff:` + victimIP + `","ip-address-type":"ipv6"},{"ip-address":"fe80::1%vmbr0","ip-address-type":"ipv6"},
			{"ip-address":"` + victimIP + `","ip-address-type":"ipv4 ` + victimIP + `"},{"ip-address":"` + victimIP + `","ip-address-type":"ipv6"},
			{"ip-address":"` + victimIP + `\nLINUS_VM_IP:` + victimIP + `","ip-address-type":"ipv4"},{"ip-address":"\u001b[2J","ip-address-type":"ipv4"},
			{"ip-address":{"` + victimIP + `":1},"ip-address-type":"ipv4"},{"ip-address":"-oProxyCommand=id","ip-address-type":"ipv4"}]}]`, "", "", "had no address after 10 s"},
		{"ten thousand interfaces", "[" + strings.Join(many, ",") + "]", "", "", "did not answer at 10.1.0.1"},
		{"no JSON", "<html>", "", "", "had no address after 10 s"},
		{"a key that is none", "", "ssh-ed25519 AAAA\x1b[2J", "", "VM " + liar},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &mcpClient{c.Client, t}
			h.lie(t, liar, tt.interfaces, tt.key)
			h.fault(t, string(state.FaultNeighbourMAC), tt.neighbour)
			said := c.fail("start_vm", map[string]any{"vm_id": "liar"})
			if !strings.Contains(said, tt.says) || len(said) > 4000 || strings.ContainsRune(said, '\x1b') {
				t.Errorf("start_vm: %q, want %q", said, tt.says)
			}
			if vm := c.call("get_vm", map[string]any{"vm_id": "liar"}); vm["ip"] != liarIP {
				t.Errorf("it is now at %v, was at %s", vm["ip"], liarIP)
			}
		})
	}
	h.lie(t, liar, "", "")
	t.Run("a new VM", func(t *testing.T) {
		c := &mcpClient{c.Client, t}
		h.lie(t, "any", at(victimIP), victimKey)
		// Whatever claims it: the network shows the card of the VM that is made.
		h.fault(t, string(state.FaultNeighbourMAC), h.macOf(t, liar))
		job := c.endsAs(c.submit(script("echo never")), "failed", "provision_failed")
		if said := fmt.Sprint(job["error"]); !strings.Contains(said, "is not what answers at "+victimIP) {
			t.Errorf("error: %s", said)
		}
		h.lie(t, "any", "", "")
	})
	h.fault(t, string(state.FaultNeighbourMAC), "")
	c.call("start_vm", map[string]any{"vm_id": "liar"})
	for name, key := range map[string]string{"liar": liarKey, "victim": victimKey} {
		m := script("hostname; cat /etc/ssh/ssh_host_ed25519_key.pub")
		m["vm"] = name
		id := c.submit(m)
		c.wait(id)
		got := c.call("get_job_result", map[string]any{"job_id": id})
		if out, _ := got["output"].(string); got["status"] != "success" || !strings.HasPrefix(out, name+"\n"+key) {
			t.Errorf("the job in %s: %v", name, got)
		}
	}
}

// Where the network shows another card, or none, at a VM's address, the VM is
// not used, and is gone.
func TestHostileNetwork_AnotherCardAtTheAddress(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	for fault, tt := range map[lab.Fault]struct{ value, says string }{
		state.FaultNeighbourMAC: {"02:00:00:00:00:01", "the card 02:00:00:00:00:01 answers at"},
		state.FaultRouted:       {"1", "VM_ROUTED=true"},
	} {
		h.fault(t, string(fault), tt.value)
		job := c.endsAs(c.submit(script("echo never")), "failed", "provision_failed")
		if said := fmt.Sprint(job["error"]); !strings.Contains(said, tt.says) {
			t.Errorf("%s: %s", fault, said)
		}
		if err := h.lab.ClearFaults(); err != nil {
			t.Fatal(err)
		}
		h.waitGone(t)
	}
}

// A stranger is where the VM should be, lets everybody in, and the VM's agent
// says nothing. It gets neither task nor secrets; where first use is trusted by
// will, it gets no secrets.
func TestStranger_GetsNeitherTaskNorSecrets(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		setting string
		reason  string
		says    []string
	}{
		{"as it is", "VM_NETWORK_TIMEOUT=10", "provision_failed", []string{"guest agent of VM", "did not answer within 10 s", "which nobody vouches for", "linus template build"}},
		{"first use trusted", "VM_TRUST_FIRST_USE=true", "start_failed", []string{"gets none: its SSH host key was not read through the hypervisor"}},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ip := fmt.Sprintf("127.9.%d.%d", os.Getpid()%250, 10+i)
			h := newHost(t, lab.DriverProcess, "LINUS_SECRET_KEY=a secret of ours", tt.setting)
			stranger := sshtest.Start(t, sshtest.Options{IP: ip, Port: h.lab.Config.GuestPort, Trap: true})
			h.fault(t, string(state.FaultAgentSilent), "1")
			h.fault(t, string(state.FaultNeighbourAddress), ip)
			c := h.connect(t)
			m := script("cat /run/secrets")
			m["secrets"] = []any{"KEY"}
			job := c.endsAs(c.submit(m), "failed", tt.reason)
			for _, says := range tt.says {
				if said := fmt.Sprint(job["error"]); !strings.Contains(said, says) {
					t.Errorf("error: %s; want %q", said, says)
				}
			}
			if stats := stranger.Stats(); stats.Connections != 0 || stats.Execs != 0 {
				t.Errorf("the stranger was logged in to: %+v", stats)
			}
			h.waitGone(t)
		})
	}
}

// What logs in to one VM logs in to no other; a VM made when one key did for all
// goes on with that.
func TestLoginKey_IsOneVMsAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	c := h.connect(t)
	if plan := fmt.Sprint(c.call("provision_vm", map[string]any{"name": "none", "dry_run": true})); !strings.Contains(plan, "qm clone") && !strings.Contains(plan, "'qm' 'clone'") {
		t.Errorf("plan: %s", plan) // it needs a key, and none is made for it
	}
	c.keep(h, "one")
	c.keep(h, "two")
	keys, err := filepath.Glob(filepath.Join(h.state, "keys", "*-*"))
	if err != nil || len(keys) != 2 {
		t.Fatalf("keys: %v, %v", keys, err)
	}
	login := func(vm, key string) error {
		argv := strings.Fields(h.cli(t, "vm", "ssh", vm, "--print"))
		line := strings.Join(argv, " ")
		own := ""
		for _, k := range keys {
			if strings.Contains(line, k) {
				own = k
			}
		}
		if own == "" {
			t.Fatalf("the command names no key of ours: %s", line)
		}
		if key == "another" {
			for _, k := range keys {
				if k != own {
					line = strings.Replace(line, own, k, 1)
					break
				}
			}
		}
		out, err := exec.CommandContext(t.Context(), "bash", "-c", line+" true").CombinedOutput()
		t.Logf("%s by %s: %v %s", vm, key, err, out)
		return err
	}
	for _, vm := range []string{"one", "two"} {
		if err := login(vm, "its own"); err != nil {
			t.Errorf("%s by its own key: %v", vm, err)
		}
		if err := login(vm, "another"); err == nil {
			t.Errorf("%s lets another VM's key in", vm)
		}
	}
}
