import argparse,os,time,queue,psutil
from gpuconsole import __version__
from gpuconsole.model.device import Device
from gpuconsole.wire.channel import ChildChannel, die_with_parent
from gpuconsole.wire.events import *
def main():
    p=argparse.ArgumentParser(); p.add_argument("--fd",type=int); p.add_argument("--interval",type=float,default=1.0); a=p.parse_args()
    die_with_parent(); c=ChildChannel(a.fd); c.listen(lambda e: os._exit(0), lambda: os._exit(0))
    c.send(Hello(time.monotonic(),"sampler",os.getpid(),__version__,time.time()))
    m=psutil.virtual_memory()
    c.send(Devices(time.monotonic(),[Device("cpu","host CPU",m.total)],None,"NVML library not found"))
    psutil.cpu_percent()
    while True:
        time.sleep(a.interval); m=psutil.virtual_memory()
        c.send(Sample(time.monotonic(),"cpu",{"host.cores_busy":psutil.cpu_percent()/100*psutil.cpu_count(),"host.memory_used_bytes":float(m.total-m.available),"host.memory_total_bytes":float(m.total)}))
main()
