package state

// MaxNICs is the number of netN keys that PVE knows.
const MaxNICs = 32

// NICModels are the models of network cards, as netN names them.
var NICModels = []string{
	"virtio", "e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er",
	"ne2k_isa", "ne2k_pci", "pcnet", "rtl8139", "vmxnet3",
}

// NIC is a VM's network interface, as its netN describes it.
type NIC struct {
	Device string // QEMU's device type
	MAC    string
	Bridge string
	Down   bool // whether its link is down
}

// ParseNIC reads a netN value; ok is false if it names no model.
func ParseNIC(value string) (NIC, bool) {
	props := Props(value)
	for _, model := range NICModels {
		if mac := props[model]; mac != "" {
			device := model
			if model == "virtio" {
				device = "virtio-net-pci"
			}
			return NIC{Device: device, MAC: mac, Bridge: props["bridge"], Down: props["link_down"] == "1"}, true
		}
	}
	return NIC{}, false
}
