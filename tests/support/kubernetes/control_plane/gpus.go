package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	devices "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

const (
	resource = "nvidia.com/gpu"
	// A kubelet looks there for plugins, whichever of the two starts first, and again when it is restarted.
	socket = "/var/lib/kubelet/plugins_registry/gpus.sock"
)

// newGPUsCommand is a device plugin: a node's GPUs are names like NVIDIA's, given to one container each at a time.
func newGPUsCommand() *cobra.Command {
	return &cobra.Command{Use: "gpus COUNT", Args: cobra.ExactArgs(1), RunE: serveGPUs}
}

func serveGPUs(_ *cobra.Command, arguments []string) error {
	count, err := strconv.Atoi(arguments[0])
	if err != nil {
		return err
	}
	node, err := os.Hostname()
	if err != nil {
		return err
	}
	gpus := make([]*devices.Device, count)
	for index := range gpus {
		gpus[index] = &devices.Device{ID: fmt.Sprintf("GPU-%s-%d", node, index), Health: devices.Healthy}
	}
	plugin := devicemanager.NewDevicePluginStub(gpus, socket, resource, false, false)
	plugin.SetAllocFunc(grant)
	if err := plugin.Start(); err != nil {
		return err
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
	return plugin.Stop()
}

// grant tells a container its GPUs as NVIDIA's plugin does.
func grant(asked *devices.AllocateRequest, _ map[string]devices.Device) (*devices.AllocateResponse, error) {
	answer := &devices.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &devices.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIDs, ",")},
		})
	}
	return answer, nil
}
